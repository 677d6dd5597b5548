//! Asks the machines of other replicas by ICMP echo whether they are there.
//!
//! Kernels answer, so that a machine whose replica is overloaded, stops or has crashed still counts as there: its redirector works.
//! Rejected: connects to the replica. Its accept queue may be full while it serves thousands of connections, which other replicas would
//! then reset.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    process,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto, socket_with,
    },
};

/// Interval of probes.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);
/// A machine is silent once more probes in a row than these have no answer: half a second, in which a client has sent a lost packet
/// twice.
const MISSED: u32 = 4;
/// The most answers read at a time: more come from nobody that was asked.
const MOST_ANSWERS: usize = 1024;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Probes of machines by address.
#[derive(Debug)]
pub(super) struct MachineProbes {
    socket: OwnedFd,
    /// Tells answers to this process from those to others of this machine.
    id: u16,
    sequence: u16,
    machines: BTreeMap<Ipv4Addr, Machine>,
}

#[derive(Debug, Default)]
struct Machine {
    unanswered: u32,
    /// Whether it has ever answered. One that never did may be behind a firewall, and counts as there.
    has_answered: bool,
}

impl Machine {
    fn is_silent(&self) -> bool {
        self.has_answered && self.unanswered > MISSED
    }
}

impl MachineProbes {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        // The lower half of the number.
        let id = (process::id() & 0xffff) as u16;
        Ok(Self { socket, id, sequence: 0, machines: BTreeMap::new() })
    }

    /// Sets the machines to probe, and keeps the results of machines that stay.
    pub(super) fn set_machines(&mut self, machines: Vec<Ipv4Addr>) {
        let known = &mut self.machines;
        let kept = machines.into_iter().map(|machine| (machine, known.remove(&machine).unwrap_or_default()));
        self.machines = kept.collect();
    }

    /// Reads the answers that have come, and sends the next probe to each machine.
    pub(super) fn probe(&mut self) {
        self.read_answers();
        self.sequence = self.sequence.wrapping_add(1);
        let request = echo(ECHO_REQUEST, self.id, self.sequence);
        for (address, machine) in &mut self.machines {
            machine.unanswered = machine.unanswered.saturating_add(1);
            let to = SocketAddrV4::new(*address, 0);
            // One that cannot be sent has no answer either.
            let _ = sendto(&self.socket, &request, SendFlags::empty(), &to);
        }
    }

    fn read_answers(&mut self) {
        let mut buffer = [0; 256];
        for _ in 0..MOST_ANSWERS {
            match recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, from)) => {
                    let from = from.and_then(|from| SocketAddrV4::try_from(from).ok());
                    self.note(&buffer[..length], from.map(|from| *from.ip()));
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Notes a received packet.
    fn note(&mut self, packet: &[u8], from: Option<Ipv4Addr>) {
        if let Some(machine) = from.and_then(|from| self.machines.get_mut(&from))
            && is_answer(packet, self.id)
        {
            *machine = Machine { unanswered: 0, has_answered: true };
        }
    }

    /// Whether a machine answered before and is silent now. Where all machines fall silent at once, this one is cut
    /// off: they would still have their connections once its link is back. Of one other machine, nobody can tell.
    pub(super) fn is_silent(&self, machine: Ipv4Addr) -> bool {
        self.machines.get(&machine).is_some_and(Machine::is_silent) && !self.is_cut_off()
    }

    fn is_cut_off(&self) -> bool {
        let mut known = self.machines.values().filter(|one| one.has_answered);
        self.machines.len() > 1 && known.all(Machine::is_silent)
    }
}

/// An ICMP echo message without data (RFC 792).
fn echo(kind: u8, id: u16, sequence: u16) -> [u8; 8] {
    let [id, sequence] = [id.to_be_bytes(), sequence.to_be_bytes()];
    let mut message = [kind, 0, 0, 0, id[0], id[1], sequence[0], sequence[1]];
    let sum: u32 = message.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// Whether an IPv4 packet is an echo reply with this id. The kernel has verified its length.
fn is_answer(packet: &[u8], id: u16) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or_default() & 15) * 4;
    let Some(message) = packet.get(header..) else { return false };
    message.first() == Some(&ECHO_REPLY) && message.get(4..6) == Some(&id.to_be_bytes()[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_request_has_valid_checksum_and_its_reply_is_an_answer() {
        let request = echo(ECHO_REQUEST, 0xfedc, 0xffff);
        let words = request.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "RFC 1071");
        let packet = |message: [u8; 8]| [&[0x45; 20][..], &message].concat();
        assert!(is_answer(&packet(echo(ECHO_REPLY, 7, 1)), 7));
        assert!(!is_answer(&packet(echo(ECHO_REPLY, 8, 1)), 7), "an answer to another process");
        assert!(!is_answer(&packet(request), 0xfedc), "a request is no answer");
        for length in 0..24 {
            assert!(!is_answer(&packet(echo(ECHO_REPLY, 7, 1))[..length], 7), "{length}");
        }
    }

    #[test]
    fn machine_is_silent_once_answers_stop_and_not_before_first_one() {
        let Ok(mut probes) = MachineProbes::open() else {
            return fairmesh_test_support::skipped("machines cannot be probed", "it needs CAP_NET_RAW");
        };
        let machine = Ipv4Addr::LOCALHOST;
        probes.set_machines(vec![machine]);
        fairmesh_test_support::eventually_blocking("loopback answers", || {
            probes.probe();
            probes.machines[&machine].has_answered
        });
        assert!(!probes.is_silent(machine));
        // Nobody has this address.
        let nobody = Ipv4Addr::new(240, 0, 0, 1);
        probes.set_machines(vec![machine, nobody]);
        (0..=MISSED).for_each(|_| probes.probe());
        assert!(!probes.is_silent(nobody), "it never answered");
        probes.machines.get_mut(&nobody).unwrap().has_answered = true;
        assert!(probes.is_silent(nobody));
        probes.machines.get_mut(&machine).unwrap().unanswered = MISSED + 1;
        assert!(!probes.is_silent(nobody), "all are silent: this machine is cut off");
        probes.set_machines(vec![machine]);
        assert!(!probes.is_silent(nobody), "it is asked no more");
    }
}
