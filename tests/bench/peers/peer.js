// A peer in a page of its own. What runs is named after # in the address, as JSON: {module, peer, threads, ...}; module is
// whisper, segment or generate, peer one of its functions; prime: the visit only fills caches. Times are milliseconds of
// performance.now(), which counts from the navigation, as in the page that measures Candlewick.
const settings = JSON.parse(decodeURIComponent(location.hash.slice(1)));

const opened = import(`./${settings.module}.js`).then((module) => module[settings.peer](settings));
/** @type {any} */ (window).bench = {
  first: async () => (await opened).first,
  async again(/** @type {number} */ runs) {
    const { once } = await opened;
    const all = [];
    for (let i = 0; i < runs; i++) all.push(await once());
    return all;
  },
};
