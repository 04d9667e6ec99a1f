// Signs and verifies with the JavaScript library of Standard Webhooks; tests/interop/main.rs asks
// it. The argument is a file in the directory that the library is installed in.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.argv[2]);
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

const asked = JSON.parse(readFileSync(0, "utf8"));
const webhook = new Webhook(asked.secret);
const headers = {
  "webhook-id": asked.id,
  "webhook-timestamp": String(asked.timestamp),
  "webhook-signature": asked.signature,
};
let isBelieved = true;
try {
  webhook.verify(asked.body, headers);
} catch (error) {
  if (!(error instanceof WebhookVerificationError)) {
    throw error;
  }
  isBelieved = false;
}
const signature = webhook.sign(asked.id, new Date(asked.timestamp * 1000), asked.body);
process.stdout.write(JSON.stringify({ is_believed: isBelieved, signature }));
