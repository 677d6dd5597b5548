use std::time::Duration;

use super::{
    Suite, now,
    writers::{self, MARKS},
};
use crate::checker::{Expect, Key, Op, Outcome, Value};

/// So many batches, each of all the keys: a hundred thousand updates in the long form.
const BATCHES: u64 = 100;
const BATCHES_SHORT: u64 = 20;
const KEYS: u64 = 1000;
/// How many batches are under way at a time.
const LINES: u64 = 10;
/// Where the keys begin: above those that writers contend for, below marks.
const FIRST: Key = 500_000;
/// Where the marks of bursts begin: above those of any writer.
const BURSTS: Key = 1000 * MARKS;

/// Updates a thousand registers again and again, as fast as it goes, and deletes them; how many updates that were, and
/// how long they took.
pub(crate) fn burst(suite: &Suite) -> (u64, Duration) {
    let batches = if suite.is_long() { BATCHES } else { BATCHES_SHORT };
    // The marks and values of no two bursts are the same.
    let first = BURSTS + suite.users.recorder.time() / 1000;
    let began = now();
    let lines: Vec<_> = (0..LINES)
        .map(|number| {
            let (recorder, mut line) = (suite.users.recorder.clone(), suite.users.line());
            let numbers = (number * batches / LINES)..((number + 1) * batches / LINES);
            suite.users.runtime.handle.spawn(async move {
                let _pass = recorder.gate.read().await;
                for number in numbers {
                    // A batch that no control plane accepted is sent again.
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
            // A mark of its own for each attempt, or another could not tell what became of the one before.
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
