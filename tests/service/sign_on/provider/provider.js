// The certified oidc-provider with the people that the test names, line by line of its standard input:
//   {"people": {"ana": {"name": "Ana", "email": "...", "groups": ["..."]}}}
// The first line also has its own name, the port and the client; each line is answered by one.

import { createInterface } from "node:readline";
import Provider from "oidc-provider";

let people = {};
let server;

const account = (id) => ({
  accountId: id,
  claims: () => ({ sub: id, ...people[id] }),
});

function start({ issuer, port, client }) {
  const provider = new Provider(issuer, {
    clients: [{ ...client, grant_types: ["authorization_code", "refresh_token"], response_types: ["code"] }],
    claims: { openid: ["sub"], profile: ["name", "groups"], email: ["email"] },
    cookies: { keys: ["a key of the test"] },
    findAccount: (_context, id) => (people[id] ? account(id) : undefined),
    pkce: { required: () => true },
    // Identities last for days: the service's clock is moved on, and the provider's is not.
    ttl: { AccessToken: 600, AuthorizationCode: 60, IdToken: 90 * 86400, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
  });
  return new Promise((listening) => {
    server = provider.listen(port, "127.0.0.1", listening);
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const said = JSON.parse(line);
  if (said.people) people = said.people;
  if (said.client) await start(said);
  process.stdout.write("done\n");
}
server?.close();
process.exit(0);
