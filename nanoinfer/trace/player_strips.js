// The strips in a trace's timeline (draw_strips.js). player.py gives `data.fetched`: the FetchedPrefixes of nanoinfer/trace/fetches.py.

/** A FetchedPrefix as a run of its request's lane. A frame has its step's number. */
const asRun = (prefix) => ({ ...prefix, phase: FETCHED, from: prefix.step, to: prefix.step + 1 });

refine(Page, {
  lane(before, req, runs, place) {
    const fetched = data.fetched.filter((prefix) => prefix.request === req.index);
    return before(req, [...runs, ...fetched.map(asRun)], place);
  },

  timelineLegend(before, runs) {
    before([...runs, ...data.fetched.map(asRun)]);
  },
});
