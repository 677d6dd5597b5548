use std::time::Duration;

use super::{
    Suite, now,
    writers::{self, MARKS},
};
use crate::checker::{Expect, Key, Op, Outcome, Value};

/// Number of batches, each of all the keys: a hundred thousand updates in the long form.
const BATCHES: u64 = 100;
const BATCHES_SHORT: u64 = 20;
const KEYS: u64 = 1000;
/// Number of batches in flight at a time.
const LINES: u64 = 10;
/// First key of bursts: above the keys that writers contend for, below marks.
const FIRST: Key = 500_000;
/// First mark of bursts: above the marks of all writers.
const BURSTS: Key = 1000 * MARKS;

/// Updates a thousand registers repeatedly at full speed, then deletes them. Returns the number of updates and the
/// duration.
pub(crate) fn burst(suite: &Suite) -> (u64, Duration) {
    let batches = if suite.is_long() { BATCHES } else { BATCHES_SHORT };
    // Bursts never share marks or values.
    let first = BURSTS + suite.users.recorder.time() / 1000;
    let began = now();
    let lines: Vec<_> = (0..LINES)
        .map(|number| {
            let (recorder, mut line) = (suite.users.recorder.clone(), suite.users.line());
            let numbers = (number * batches / LINES)..((number + 1) * batches / LINES);
            suite.users.runtime.handle.spawn(async move {
                let _pass = recorder.gate.read().await;
                for number in numbers {
                    // Resends a batch that no control plane accepted.
                    while writers::write(&recorder, &mut line, batch(first, number)).await.is_none() {}
                }
            })
        })
        .collect();
    suite.users.runtime.run(async {
        for line in lines {
            line.await.unwrap();
        }
    });
    let took = began.elapsed();
    let (recorder, mut line) = (suite.users.recorder.clone(), suite.users.line());
    suite.users.runtime.run(async move {
        let _pass = recorder.gate.read().await;
        let delete = |key| Op { key, value: None, expect: Expect::Any };
        let mark = first + batches;
        let mut ops = vec![Op { key: mark, value: Some(mark << 12), expect: Expect::Absent }];
        ops.extend((FIRST..FIRST + KEYS).map(delete));
        while !matches!(writers::write(&recorder, &mut line, ops.clone()).await, Some(Outcome::Done(_))) {
            // A new mark for each attempt, so that the outcome of each earlier attempt stays visible.
            ops[0].key += 1;
            ops[0].value = Some(ops[0].key << 12);
        }
    });
    (batches * KEYS, took)
}

fn batch(first: Key, number: u64) -> Vec<Op> {
    let mark = first + number;
    let value = |part: u64| -> Value { mark << 12 | part };
    let mut ops = vec![Op { key: mark, value: Some(value(0)), expect: Expect::Absent }];
    ops.extend((0..KEYS).map(|part| Op {
        key: FIRST + part,
        value: Some(value(1 + part)),
        expect: Expect::Any,
    }));
    ops
}
