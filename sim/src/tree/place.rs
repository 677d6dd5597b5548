//! One process of the tree, and how it is reached.

use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::Prefix;
use fairmesh_rib::{PlainNode, WatcherId};

use super::{meter::Meter, scenario::Machine};

/// Bytes that a gigabit has, a nanosecond.
const GIGABIT: f64 = 1.0 / 8.0;

/// Which process, by its place in the list of all that are played.
pub(super) type Id = usize;

/// A process that is played.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) layer: usize,
    pub(super) region: Option<usize>,
    pub(super) parent: Option<Id>,
    /// How many processes under its parent it stands for, itself included, and how many of the whole tree.
    pub(super) alike: u64,
    pub(super) stands_for: u64,
    /// What it holds, and who watches it; programs hold it only where it is compared in the end.
    pub(super) node: Option<PlainNode>,
    pub(super) wants: Vec<Prefix>,
    /// The last revision that it has applied, and said so.
    pub(super) applied: u64,
    pub(super) acked: u64,
    pub(super) cores: f64,
    /// Bytes a nanosecond that it may send, and that it can receive.
    uplink: f64,
    downlink: f64,
    /// One way from its parent.
    pub(super) delay: u64,
    /// When its cores and its way out are free again.
    pub(super) cores_free: u64,
    uplink_free: u64,
    pub(super) up: bool,
    pub(super) connection: Connection,
    /// Who watches it, and who of them waits to be served.
    pub(super) children: BTreeMap<WatcherId, Id>,
    pub(super) waiting: VecDeque<Id>,
    pub(super) serving: bool,
    pub(super) meter: Meter,
}

/// How a process is connected to its parent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    /// Which of its connections: what belongs to an earlier one is lost.
    pub(super) generation: u32,
    pub(super) watcher: Option<WatcherId>,
    pub(super) failures: u32,
    /// Whether something is on its way into it, so that nothing more is pulled, and whether there is more to pull.
    pub(super) sending: bool,
    pub(super) due: bool,
    /// When the last message arrives.
    pub(super) arrives: u64,
    /// Which event took the connection, until it is back and current.
    pub(super) lost_to: Option<usize>,
}

/// What is sent: how long it is, and how many nanoseconds of one core it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) bytes: u64,
    pub(super) nanos: f64,
}

/// How a message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    /// When the cores turn to what is next.
    pub(super) cores_free: u64,
    /// When the last byte has left for the played one, and when it arrives.
    pub(super) sent: u64,
    pub(super) arrives: u64,
}

impl Place {
    pub(super) fn new(layer: usize, machine: Machine, gigabits: f64) -> Self {
        Self {
            layer,
            region: None,
            parent: None,
            alike: 1,
            stands_for: 1,
            node: None,
            wants: Vec::new(),
            applied: 0,
            acked: 0,
            cores: machine.cores,
            uplink: machine.gigabits * GIGABIT,
            downlink: gigabits * GIGABIT,
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

    /// Takes so many nanoseconds of one core; returns when they are done.
    pub(super) fn work(&mut self, now: u64, nanos: f64) -> u64 {
        let nanos = (nanos / self.cores) as u64;
        self.meter.now.busy += nanos;
        self.cores_free = self.cores_free.max(now) + nanos;
        self.cores_free
    }

    /// Sends a message to each of the `alike` processes that a child stands for, one after the other; the played one is the
    /// `turn`-th of them.
    pub(super) fn send(&mut self, now: u64, message: Message, turn: u64, child: &Self) -> Departure {
        let Message { bytes, nanos } = message;
        let begin = now.max(self.cores_free);
        let one = (nanos / self.cores) as u64;
        let wire = (bytes as f64 / self.uplink) as u64;
        let open = self.uplink_free.max(begin + one);
        let end = |messages: u64| (open + messages * wire).max(begin + messages * one + wire);
        self.uplink_free = end(child.alike);
        let cores_free = self.work(now, nanos * child.alike as f64);
        self.meter.now.sent += bytes * child.alike;
        self.meter.now.messages += child.alike;
        // Its own link may be the slower one.
        let own = (bytes as f64 / child.downlink) as u64;
        let sent = end(turn + 1).max(begin + one + own);
        Departure { cores_free, sent, arrives: (sent + child.delay).max(child.connection.arrives) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(cores: f64, gigabits: f64) -> Place {
        Place::new(0, Machine { cores, gigabits }, gigabits)
    }

    #[test]
    fn the_slowest_of_processor_uplink_and_downlink_decides_when_a_message_arrives() {
        // A byte a nanosecond.
        let mut child = place(1.0, 8.0);
        child.delay = 1000;
        // By the wire: two messages of 500 bytes, the second one is the played one's.
        child.alike = 2;
        let departure = place(1.0, 8.0).send(0, Message { bytes: 500, nanos: 10.0 }, 1, &child);
        assert_eq!(departure, Departure { cores_free: 20, sent: 1010, arrives: 2010 });
        // By the processor, of which there are two.
        let departure = place(2.0, 8.0).send(0, Message { bytes: 5, nanos: 400.0 }, 1, &child);
        assert_eq!(departure, Departure { cores_free: 400, sent: 405, arrives: 1405 });
        // By the child's own link.
        let mut slow = place(1.0, 0.8);
        slow.alike = 1;
        assert_eq!(place(1.0, 8.0).send(0, Message { bytes: 500, nanos: 10.0 }, 0, &slow).sent, 5010);
    }

    #[test]
    fn what_is_sent_waits_for_what_was_sent_before() {
        let (mut parent, child) = (place(1.0, 8.0), place(1.0, 8.0));
        assert_eq!(parent.send(0, Message { bytes: 1000, nanos: 10.0 }, 0, &child).sent, 1010);
        assert_eq!(parent.send(0, Message { bytes: 1000, nanos: 10.0 }, 0, &child).sent, 2010);
        assert_eq!(parent.meter.now.sent, 2000);
    }
}
