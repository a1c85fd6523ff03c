// Sends what a server asks of the web to a server of the test: nothing leaves this machine.
const http = require("http");
const https = require("https");

const web = new URL(process.env.TEST_WEB);
const fetch = globalThis.fetch;
globalThis.fetch = (input, options) => {
  const url = new URL(input.url ?? input);
  const to = url.protocol === "https:" ? new URL(url.pathname + url.search, web) : url;
  return fetch(to, options);
};
https.request = (options, answered) => {
  const to = { host: web.hostname, hostname: web.hostname, port: web.port, protocol: "http:" };
  return http.request({ ...options, ...to, agent: undefined }, answered);
};
