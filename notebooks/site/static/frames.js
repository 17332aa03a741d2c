"use strict";
/* A figure is as high as its content, at every width. From a folder of files, where pages may not look into one another, it keeps
   the height that the notebook gave it. */
for (const frame of document.querySelectorAll("iframe")) {
  frame.addEventListener("load", () => {
    const content = frame.contentDocument;
    if (!content) return;
    const fit = () => { frame.style.height = `${content.body.scrollHeight + 2}px`; };
    new ResizeObserver(fit).observe(content.body);
  });
}
