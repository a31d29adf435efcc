'use strict';
// A processor in Node, on the npm package aws-kcl: checkpoints each batch at its last record. Writes down what noting.py does.

const fs = require('fs');
const kcl = require('aws-kcl');

const file = process.argv[2];
let shard = null;

const note = (what, fields) => fs.appendFileSync(file, JSON.stringify({ what, shard, ...fields }) + '\n');

function checkpoint(checkpointer, asked, then) {
  const answered = (error) => {
    note('checkpoint', { asked: asked || [], error: error ? String(error) : null });
    then();
  };
  if (asked) checkpointer.checkpoint(...asked, answered);
  else checkpointer.checkpoint(answered);
}

kcl({
  initialize(input, done) {
    shard = input.shardId;
    note('initialize', { at: [input.sequenceNumber, input.subSequenceNumber] });
    done();
  },
  processRecords(input, done) {
    for (const one of input.records) {
      note('record', {
        record: [one.sequenceNumber, one.subSequenceNumber, one.partitionKey, one.data, one.approximateArrivalTimestamp, null],
      });
    }
    const last = input.records[input.records.length - 1];
    checkpoint(input.checkpointer, [last.sequenceNumber], () => {
      note('batch');
      done();
    });
  },
  leaseLost(input, done) {
    note('lost');
    done();
  },
  shardEnded(input, done) {
    checkpoint(input.checkpointer, null, () => {
      note('ended');
      done();
    });
  },
  shutdownRequested(input, done) {
    checkpoint(input.checkpointer, null, () => {
      note('requested');
      done();
    });
  },
}).run();
