"use strict";
// A figure is as high as its content. Pages opened from a folder may not look into one another: there, it keeps its height.
for (const frame of document.querySelectorAll("iframe")) {
  const fit = () => {
    const content = frame.contentDocument?.body;
    if (content?.childElementCount) new ResizeObserver(() => { frame.style.height = `${content.scrollHeight + 2}px`; }).observe(content);
  };
  frame.addEventListener("load", fit);
  fit();
}
// For the keyboard, and for those who only hear the page.
const reach = () => {
  for (const each of document.querySelectorAll("pre, .table-wrapper, .math-wrapper")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
};
addEventListener("resize", reach);
reach();
document.querySelector(".toc-drawer").ariaLabel = document.querySelector(".toc-title")?.textContent.trim() ?? "";
