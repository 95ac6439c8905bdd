// A process with RocketMQ's Node.js client, driven by JSON lines: a command a line on stdin, a reply a line on stdout.
//
// In: {"id", "command", and its arguments}. Out: {"id", "result"}, or {"id", "error", "code"}. Always: commands run
// concurrently; the end of stdin ends the process. Not here: what is right, which the scenarios decide.
'use strict';

const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

// Of FilterType, which the package does not export.
const SQL = 2;
const RESOLUTIONS = { UNKNOWN: 0, COMMIT: 1, ROLLBACK: 2 };
const quiet = { info() {}, warn() {}, debug() {}, error(...words) { console.error(...words); }, close() {} };
const clients = new Map();
const messages = new Map();
let handles = 0;

async function hold(client, log) {
  await client.startup();
  handles += 1;
  clients.set(handles, { client, log });
  return handles;
}

function configuration(facts) {
  const options = { endpoints: facts.endpoints, namespace: '', sslEnabled: facts.tls === true, logger: quiet };
  if (facts.access_key !== undefined) {
    options.sessionCredentials = { accessKey: facts.access_key, accessSecret: facts.secret_key };
  }
  return options;
}

function messageOf(facts) {
  const message = { topic: facts.topic, body: facts.body === undefined ? Buffer.alloc(facts.body_bytes) : Buffer.from(facts.body) };
  if (facts.tag !== undefined) message.tag = facts.tag;
  if (facts.keys !== undefined) message.keys = facts.keys;
  if (facts.properties !== undefined) message.properties = new Map(Object.entries(facts.properties));
  if (facts.message_group !== undefined) message.messageGroup = facts.message_group;
  if (facts.deliver_ms !== undefined) message.deliveryTimestamp = new Date(facts.deliver_ms);
  return message;
}

function factsOf(view) {
  return {
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString(),
    tag: view.tag || null,
    keys: [ ...view.keys ].sort(),
    properties: Object.fromEntries(view.properties),
    message_group: view.messageGroup || null,
    attempt: view.deliveryAttempt,
    corrupted: view.corrupted === true,
    at_ms: Date.now(),
  };
}

// Answers checks by the body; the last answer is repeated.
function checker(answers, log) {
  return {
    async check(view) {
      const body = view.body.toString();
      const said = answers[body] ?? [ 'UNKNOWN' ];
      const before = log.filter(one => one === body).length;
      log.push(body);
      return RESOLUTIONS[said[Math.min(before, said.length - 1)]];
    },
  };
}

// Fails a body as often as it was told.
function listener(fail, log) {
  return {
    async consume(view) {
      const facts = factsOf(view);
      facts.failed = log.filter(one => one.body === facts.body).length < (fail[facts.body] ?? 0);
      log.push(facts);
      return facts.failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
}

function subscriptions(facts) {
  const wanted = facts.sql === undefined ? facts.tags ?? '*' : new FilterExpression(facts.sql, SQL);
  return new Map([ [ facts.topic, wanted ] ]);
}

const commands = {
  async 'producer.start'(facts) {
    const log = [];
    const options = { ...configuration(facts), topics: facts.topics };
    if (facts.answers !== undefined) options.checker = checker(facts.answers, log);
    return await hold(new Producer(options), log);
  },
  async 'producer.send'(facts) {
    const receipt = await clients.get(facts.handle).client.send(messageOf(facts));
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle };
  },
  async 'producer.transact'(facts) {
    const { client } = clients.get(facts.handle);
    const transaction = client.beginTransaction();
    const receipt = await client.send(messageOf(facts), transaction);
    if (facts.end === 'COMMIT') await transaction.commit();
    if (facts.end === 'ROLLBACK') await transaction.rollback();
    return { message_id: receipt.messageId };
  },
  async 'producer.recall'(facts) {
    await clients.get(facts.handle).client.recallMessage(facts.topic, facts.recall_handle);
  },
  async 'producer.checks'(facts) {
    return clients.get(facts.handle).log;
  },
  async 'simple.start'(facts) {
    return await hold(new SimpleConsumer({
      ...configuration(facts), consumerGroup: facts.group, subscriptions: subscriptions(facts), awaitDuration: facts.await_s * 1000,
    }));
  },
  async 'simple.receive'(facts) {
    const views = await clients.get(facts.handle).client.receive(facts.max, facts.invisible_s * 1000);
    return views.map(view => {
      handles += 1;
      messages.set(handles, view);
      return { ...factsOf(view), number: handles };
    });
  },
  async 'simple.ack'(facts) {
    await clients.get(facts.handle).client.ack(messages.get(facts.number));
  },
  async 'simple.change'(facts) {
    await clients.get(facts.handle).client.changeInvisibleDuration(messages.get(facts.number), facts.invisible_s * 1000);
  },
  async 'push.start'(facts) {
    const log = [];
    return await hold(new PushConsumer({
      ...configuration(facts), consumerGroup: facts.group, subscriptions: subscriptions(facts), messageListener: listener(facts.fail ?? {}, log),
    }), log);
  },
  async 'push.received'(facts) {
    return clients.get(facts.handle).log;
  },
  async stop(facts) {
    await clients.get(facts.handle).client.shutdown();
    clients.delete(facts.handle);
  },
};

// A refusal's code is in one of the causes.
function codeOf(problem) {
  for (let cause = problem; cause; cause = cause.cause) {
    if (typeof cause.code === 'number' && cause.code >= 30000) return cause.code;
  }
  return null;
}

function textOf(problem) {
  return problem.cause ? `${problem.message}: ${textOf(problem.cause)}` : `${problem.name}: ${problem.message}`;
}

async function answer(line) {
  const facts = JSON.parse(line);
  let reply;
  try {
    reply = { id: facts.id, result: await commands[facts.command](facts) ?? null };
  } catch (problem) {
    reply = { id: facts.id, error: textOf(problem), code: codeOf(problem) };
  }
  process.stdout.write(JSON.stringify(reply) + '\n');
}

console.log = console.error;
readline.createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0));
