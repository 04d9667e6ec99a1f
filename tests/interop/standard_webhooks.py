"""Signs and verifies with the Python library of Standard Webhooks; tests/interop/main.rs asks it."""

import json
import sys
from datetime import datetime, timezone

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

asked = json.load(sys.stdin)
webhook = Webhook(asked["secret"])
sent = datetime.fromtimestamp(asked["timestamp"], tz=timezone.utc)
headers = {
    "webhook-id": asked["id"],
    "webhook-timestamp": str(asked["timestamp"]),
    "webhook-signature": asked["signature"],
}
try:
    webhook.verify(asked["body"], headers)
    is_believed = True
except WebhookVerificationError:
    is_believed = False
signature = webhook.sign(msg_id=asked["id"], timestamp=sent, data=asked["body"])
json.dump({"is_believed": is_believed, "signature": signature}, sys.stdout)
