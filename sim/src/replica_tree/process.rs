//! One process of the tree, and its connection.

use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::Prefix;
use fairmesh_rib::{NodeCore, WatcherId};

use super::{meter::Meter, scenario::Machine};

/// Bytes per nanosecond of one gigabit per second.
const BYTES_PER_NANO: f64 = 1.0 / 8.0;

/// Index of a simulated process.
pub(super) type ProcessId = usize;

/// A simulated process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) layer: usize,
    pub(super) region: Option<usize>,
    pub(super) parent: Option<ProcessId>,
    /// Number of processes under its parent that it represents, including itself, and number in the whole tree.
    pub(super) multiplicity: u64,
    pub(super) represents: u64,
    /// Its table and watchers. Programs have a node only if tables are compared at the end.
    pub(super) node: Option<NodeCore>,
    pub(super) prefixes: Vec<Prefix>,
    /// The last revision that it has applied, and the last it has acknowledged.
    pub(super) applied: u64,
    pub(super) acked: u64,
    pub(super) cores: f64,
    /// Bandwidth in bytes per nanosecond, up and down.
    uplink: f64,
    downlink: f64,
    /// One-way delay from its parent.
    pub(super) delay: u64,
    /// Times at which its cores and its uplink are free again.
    pub(super) cores_free: u64,
    uplink_free: u64,
    pub(super) up: bool,
    pub(super) connection: Connection,
    /// Its watchers, and those waiting to be served.
    pub(super) children: BTreeMap<WatcherId, ProcessId>,
    pub(super) waiting: VecDeque<ProcessId>,
    pub(super) serving: bool,
    pub(super) meter: Meter,
}

/// The connection of a process to its parent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    /// Number of the connection: messages of an earlier one are lost.
    pub(super) generation: u32,
    pub(super) watcher: Option<WatcherId>,
    pub(super) failures: u32,
    /// Whether a message is being sent, so that nothing more is pulled, and whether there is more to pull.
    pub(super) sending: bool,
    pub(super) due: bool,
    /// Arrival time of the last message.
    pub(super) arrives: u64,
    /// The scenario event that broke the connection, until the process is connected and current again.
    pub(super) disconnected_by: Option<usize>,
}

/// A message: its length, and its cost in nanoseconds of one core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) bytes: u64,
    pub(super) nanos: f64,
}

/// The times of a sent message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    /// Time at which the cores are free again.
    pub(super) cores_free: u64,
    /// Time at which the last byte to the simulated process has left, and its arrival time.
    pub(super) sent: u64,
    pub(super) arrives: u64,
}

impl Process {
    pub(super) fn new(layer: usize, machine: Machine, gigabits: f64) -> Self {
        Self {
            layer,
            region: None,
            parent: None,
            multiplicity: 1,
            represents: 1,
            node: None,
            prefixes: Vec::new(),
            applied: 0,
            acked: 0,
            cores: machine.cores,
            uplink: machine.gigabits * BYTES_PER_NANO,
            downlink: gigabits * BYTES_PER_NANO,
            delay: 0,
            cores_free: 0,
            uplink_free: 0,
            up: true,
            connection: Connection::default(),
            children: BTreeMap::new(),
            waiting: VecDeque::new(),
            serving: false,
            meter: Meter::default(),
        }
    }

    /// Uses one core for this many nanoseconds; returns the completion time.
    pub(super) fn work(&mut self, now: u64, nanos: f64) -> u64 {
        let nanos = (nanos / self.cores) as u64;
        self.meter.now.busy += nanos;
        self.cores_free = self.cores_free.max(now) + nanos;
        self.cores_free
    }

    /// Sends a message to each of the `multiplicity` processes that a child represents, one after the other; the
    /// simulated one is the `turn`-th of them.
    pub(super) fn send(&mut self, now: u64, message: Message, turn: u64, child: &Self) -> Departure {
        let Message { bytes, nanos } = message;
        let begin = now.max(self.cores_free);
        let one = (nanos / self.cores) as u64;
        let wire = (bytes as f64 / self.uplink) as u64;
        let open = self.uplink_free.max(begin + one);
        let end = |messages: u64| (open + messages * wire).max(begin + messages * one + wire);
        self.uplink_free = end(child.multiplicity);
        let cores_free = self.work(now, nanos * child.multiplicity as f64);
        self.meter.now.sent += bytes * child.multiplicity;
        self.meter.now.messages += child.multiplicity;
        // The child's own link may be the slower one.
        let own = (bytes as f64 / child.downlink) as u64;
        let sent = end(turn + 1).max(begin + one + own);
        Departure { cores_free, sent, arrives: (sent + child.delay).max(child.connection.arrives) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(cores: f64, gigabits: f64) -> Process {
        Process::new(0, Machine { cores, gigabits }, gigabits)
    }

    #[test]
    fn simulated_arrival_is_set_by_slowest_of_processor_and_links() {
        // One byte per nanosecond.
        let mut child = process(1.0, 8.0);
        child.delay = 1000;
        // Limited by the uplink: two messages of 500 bytes, the second one for the simulated process.
        child.multiplicity = 2;
        let departure = process(1.0, 8.0).send(0, Message { bytes: 500, nanos: 10.0 }, 1, &child);
        assert_eq!(departure, Departure { cores_free: 20, sent: 1010, arrives: 2010 });
        // Limited by the processor, which has two cores.
        let departure = process(2.0, 8.0).send(0, Message { bytes: 5, nanos: 400.0 }, 1, &child);
        assert_eq!(departure, Departure { cores_free: 400, sent: 405, arrives: 1405 });
        // Limited by the child's own link.
        let mut slow = process(1.0, 0.8);
        slow.multiplicity = 1;
        assert_eq!(process(1.0, 8.0).send(0, Message { bytes: 500, nanos: 10.0 }, 0, &slow).sent, 5010);
    }

    #[test]
    fn simulated_messages_queue_behind_earlier_ones() {
        let (mut parent, child) = (process(1.0, 8.0), process(1.0, 8.0));
        assert_eq!(parent.send(0, Message { bytes: 1000, nanos: 10.0 }, 0, &child).sent, 1010);
        assert_eq!(parent.send(0, Message { bytes: 1000, nanos: 10.0 }, 0, &child).sent, 2010);
        assert_eq!(parent.meter.now.sent, 2000);
    }
}
