// A pserver in JavaScript, knowing nothing but agent.proto: attaches, registers, reads, writes, drains, goes.
// node client.js PROTO_FOLDER SOCKET; prints one JSON line for each step.
'use strict';

const path = require('path');
const modules = process.env.EDL_NODE_MODULES;
const grpc = require(path.join(modules, '@grpc/grpc-js'));
const loader = require(path.join(modules, '@grpc/proto-loader'));

const [protos, socket] = process.argv.slice(2);
const loaded = loader.loadSync('edl/agent/v1/agent.proto', {
  includeDirs: [protos], keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true,
});
const types = grpc.loadPackageDefinition(loaded).edl.agent.v1;
const client = new types.AgentService(`unix:${socket}`, grpc.credentials.createInsecure());

const say = (step, more) => console.log(JSON.stringify({ step, ...more }));
const call = (name, request) => new Promise((resolve, reject) => {
  client[name](request, { deadline: Date.now() + 10000 }, (error, answer) => (error ? reject(error) : resolve(answer)));
});
const refused = (name, request) => call(name, request).then(
  () => { throw new Error(`${name} was not refused`); },
  (error) => {
    // google.rpc.Status with an ErrorDetail; both are read here by hand: two nested length-delimited fields.
    const rich = error.metadata.get('grpc-status-details-bin')[0];
    return { code: grpc.status[error.code], text: error.details, details: rich.length };
  },
);

async function main() {
  const life = client.Attach({ program: 'node' });
  life.on('error', (error) => { if (error.code !== grpc.status.CANCELLED) say('life ended', { error: error.message }); });
  const attachment = await new Promise((resolve) => { life.once('data', (first) => resolve(first.attachment)); });
  life.on('data', () => {});
  say('attached');

  const { session } = await call('Register', { attachment, role: 'ROLE_PSERVER', port: 7164 });
  say('registered', { index: session.index, epoch: session.epoch, address: session.address, state: session.state });

  await call('Put', { attachment, key: Buffer.from('/from-node'), value: Buffer.from([0xff, 0x00, 0x31]) });
  const read = await call('Get', { key: Buffer.from('/from-node') });
  say('read', { found: read.found, value: read.value.toString('hex') });
  say('refused', await refused('Put', { attachment, key: Buffer.from('/ps/0'), value: Buffer.from('x') }));

  const { pservers } = await call('GetPservers', { wait_complete: true });
  say('pservers', { complete: pservers.complete, addresses: pservers.pservers.map((one) => one.address) });

  await call('Report', { attachment, step: 3, samples: 30 });
  const drain = client.WatchDrain({});
  let asked = false;
  await new Promise((resolve) => {
    drain.on('error', () => {});
    drain.on('data', (news) => {
      if (asked) return;
      say('drain', { state: news.drain.state, reason: news.drain.reason });
      asked = news.drain.state === 'DRAIN_STATE_REQUESTED';
      if (asked) resolve();
    });
  });
  const answer = await call('AcknowledgeDrain', { attachment });
  say('acknowledged', { asked: answer.asked });
  drain.cancel();
  await call('Shutdown', { attachment });
  say('released');
  life.cancel();
  client.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
