// Sends one call of each kind with Segment's library for Node.js: node send.mjs HOST WRITE_KEY USER_ID
import { Analytics } from "@segment/analytics-node";

const [host, writeKey, userId] = process.argv.slice(2);
const analytics = new Analytics({ host, writeKey, flushAt: 6 });
analytics.on("error", (error) => {
  console.error(JSON.stringify(error));
  process.exitCode = 1;
});
analytics.identify({ userId, traits: { plan: "pro" } });
analytics.track({ userId, event: "Order Completed", properties: { revenue: 9.5 }, messageId: `m-${userId}` });
analytics.page({ userId, name: "Install", category: "Docs" });
analytics.screen({ userId, name: "Home" });
analytics.group({ userId, groupId: `g-${userId}` });
analytics.alias({ userId, previousId: `old-${userId}` });
await analytics.closeAndFlush();
