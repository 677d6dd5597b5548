use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_model::{Revision, arith::mix64};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
    v1::{self, condition},
};
use tokio::{runtime::Handle, time::timeout};
use tonic::Code;

use super::{Recorder, registers};
use crate::checker::{Expect, Key, Op, Outcome, Value, Write};

/// Number of registers that all writers contend for.
const KEYS: Key = 40;
/// First of the keys that only one batch each writes; writer `n` uses the range from `MARKS * (n + 1)` on.
pub(crate) const MARKS: Key = 1_000_000;
/// Number of marks of a writer that exist at a time.
const KEPT: usize = 16;
/// Pause of a writer between two batches.
const PAUSE: Duration = Duration::from_millis(8);
/// Time limit of a write: longer than a control plane retries.
const ANSWER: Duration = Duration::from_secs(25);

/// A connection to the serving one of several control planes.
pub(crate) struct Line {
    addresses: Vec<Address>,
    next: usize,
    connection: Option<Connection>,
}

impl Line {
    pub(crate) fn new(addresses: &[Address]) -> Self {
        Self { addresses: addresses.to_vec(), next: 0, connection: None }
    }

    /// The current or a new connection; `None` if the next address does not answer.
    pub(crate) async fn get(&mut self) -> Option<Connection> {
        if self.connection.is_none() {
            let address = &self.addresses[self.next % self.addresses.len()];
            match handshake::connect(&Default::default(), address, "writer").await {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => {
                    self.next += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        self.connection.clone()
    }

    /// Switches to the next address.
    pub(crate) fn turn(&mut self) {
        self.connection = None;
        self.next += 1;
    }
}

/// Sends a batch and records its outcome; `None` if the batch was not sent.
pub(crate) async fn write(recorder: &Recorder, line: &mut Line, ops: Vec<Op>) -> Option<Outcome> {
    let connection = line.get().await?;
    let request = v1::WriteRequest { ops: ops.iter().map(message).collect() };
    let invoked = recorder.time();
    let answer = timeout(ANSWER, connection.rib().write(request)).await;
    let returned = recorder.time();
    let outcome = match answer {
        Ok(Ok(answer)) => {
            let revision = Revision::try_from(answer.into_inner().revision.unwrap()).unwrap();
            Outcome::Done(revision.number)
        }
        Ok(Err(status)) if status.code() == Code::Aborted => Outcome::Conflict,
        Ok(Err(status)) if status.code() == Code::InvalidArgument => panic!("{status}"),
        Ok(Err(_)) | Err(_) => {
            line.turn();
            Outcome::Unknown
        }
    };
    recorder.wrote(Write { invoked, returned, ops, outcome });
    Some(outcome)
}

fn message(op: &Op) -> v1::Op {
    let kind = match op.expect {
        Expect::Any => None,
        Expect::Absent => Some(condition::Kind::Absent(true)),
        Expect::Revision(revision) => Some(condition::Kind::Revision(revision)),
    };
    v1::Op {
        key: registers::key(op.key),
        value: op.value.map(registers::value),
        condition: kind.map(|kind| v1::Condition { kind: Some(kind) }),
    }
}

/// Writers' knowledge of the registers, so that most expectations are met.
type Known = Mutex<BTreeMap<Key, Option<u64>>>;

/// Starts writers that run as long as the runtime.
pub(crate) fn start(runtime: &Handle, recorder: &Arc<Recorder>, control: &[Address], count: u64) {
    let known = Arc::new(Known::default());
    for number in 0..count {
        let mut writer = Writer {
            number,
            batches: 0,
            marks: VecDeque::new(),
            line: Line::new(control),
            recorder: recorder.clone(),
            known: known.clone(),
        };
        runtime.spawn(async move {
            loop {
                writer.step().await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
}

struct Writer {
    number: u64,
    batches: u64,
    /// Marks known to exist.
    marks: VecDeque<Key>,
    line: Line,
    recorder: Arc<Recorder>,
    known: Arc<Known>,
}

impl Writer {
    async fn step(&mut self) {
        let recorder = self.recorder.clone();
        let _pass = recorder.gate.read().await;
        let ops = self.batch();
        let mark = ops[0].key;
        match write(&recorder, &mut self.line, ops.clone()).await {
            Some(Outcome::Done(revision)) => {
                self.learn(&ops, Some(revision));
                self.marks.retain(|mark| ops.iter().all(|op| op.key != *mark));
                self.marks.push_back(mark);
            }
            Some(Outcome::Conflict | Outcome::Unknown) => self.learn(&ops, None),
            None => {}
        }
    }

    /// Remembers the revision of an acknowledged batch's registers, or forgets the registers of any other batch.
    fn learn(&self, ops: &[Op], revision: Option<u64>) {
        let mut known = self.known.lock().unwrap();
        for op in ops.iter().filter(|op| op.key < MARKS) {
            match revision {
                Some(revision) => drop(known.insert(op.key, op.value.map(|_| revision))),
                None => drop(known.remove(&op.key)),
            }
        }
    }

    /// A batch of a new mark, one to three registers, and the deletion of the oldest mark.
    fn batch(&mut self) -> Vec<Op> {
        self.batches += 1;
        let seed = mix64(self.number << 48 | self.batches);
        let mark = MARKS * (self.number + 1) + self.batches;
        let value = |part: u64| -> Value { mark << 3 | part };
        let mut ops = vec![Op { key: mark, value: Some(value(0)), expect: Expect::Absent }];
        if self.marks.len() >= KEPT {
            ops.push(Op { key: self.marks[0], value: None, expect: Expect::Any });
        }
        let known = self.known.lock().unwrap();
        for part in 1..=1 + seed % 3 {
            let dice = mix64(seed ^ part);
            let key = dice % KEYS;
            if ops.iter().any(|op| op.key == key) {
                continue;
            }
            let expect = match known.get(&key) {
                Some(Some(revision)) if dice & 1 << 32 == 0 => Expect::Revision(*revision),
                Some(None) if dice & 1 << 32 == 0 => Expect::Absent,
                _ => Expect::Any,
            };
            let value = (dice >> 40 & 7 != 0).then(|| value(part));
            ops.push(Op { key, value, expect });
        }
        ops
    }
}

/// Writes bulk data: these keys with about `bytes` bytes each, whatever their state.
pub(crate) async fn bulk(line: &mut Line, keys: std::ops::Range<Key>, value: Value, bytes: usize) {
    let op = |key: Key| v1::Op {
        key: registers::bulk_key(key),
        value: (bytes > 0).then(|| registers::bulk_value(value, bytes)),
        condition: None,
    };
    let request = v1::WriteRequest { ops: keys.map(op).collect() };
    loop {
        let Some(connection) = line.get().await else { continue };
        match timeout(ANSWER, connection.rib().write(request.clone())).await {
            Ok(Ok(_)) => return,
            Ok(Err(status)) => assert_ne!(status.code(), Code::InvalidArgument, "{status}"),
            Err(_) => {}
        }
        line.turn();
    }
}
