//! The address that all replicas of a backend share: routers spread connections over the replicas, and redirectors in the kernel bring
//! each packet to the replica that holds its connection.

mod machine_probes;

use std::{
    collections::BTreeSet,
    mem,
    net::{SocketAddr, SocketAddrV4},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_kernel::{KernelError, PacketCounts, PacketHook, Redirector, Redirects};
use fairmesh_metrics::Register as _;
use fairmesh_placement::{BUCKETS, BucketTable};
use prometheus_client::registry::Registry;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;

use self::machine_probes::{INTERVAL, MachineProbes};
use crate::tenant_directory::Directory;

/// The address that the replicas of a backend share.
#[derive(Clone, Debug)]
pub struct EntryConfig {
    /// The address, to which routers send connections to any replica.
    pub address: SocketAddrV4,
    /// The interface at which packets of routers and of other replicas arrive.
    pub interface: String,
    /// Directory in a BPF file system, where the redirector stays if this process crashes.
    pub pins: PathBuf,
}

/// Why the address cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The kernel refuses the redirector.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Other machines cannot be probed.
    #[error("cannot open a raw socket to probe the machines of other replicas: {0}; this needs CAP_NET_RAW")]
    Probes(std::io::Error),
}

/// The shared address at this replica, with its redirector.
#[derive(Debug)]
pub(crate) struct SharedAddress {
    pub(crate) address: SocketAddrV4,
    /// The address of this replica in the record of its backend.
    own: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    redirector: Redirector,
    probes: MachineProbes,
    table: BucketTable,
    /// Replicas whose machines are unreachable, one bit for each position in the table.
    unreachable: u64,
    /// Whether this process accepts connections: before, the redirector is that of a predecessor.
    is_serving: bool,
    is_attached: bool,
}

/// What a replica reports of the shared address.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryState {
    pub(crate) counts: PacketCounts,
    /// Buckets whose new connections come to this replica, of all buckets.
    pub(crate) head_buckets: usize,
    pub(crate) buckets: usize,
    pub(crate) unreachable: Vec<SocketAddrV4>,
}

impl SharedAddress {
    /// Loads the redirector, without attaching it.
    pub(crate) fn load(config: &EntryConfig, own: SocketAddr) -> Result<Self, EntryError> {
        let hook = (PacketHook::of_this_kernel(), &*config.pins);
        let state = State {
            redirector: Redirector::load(config.address, &config.interface, hook)?,
            probes: MachineProbes::open().map_err(EntryError::Probes)?,
            table: BucketTable::new(&BTreeSet::new()),
            unreachable: 0,
            is_serving: false,
            is_attached: false,
        };
        Ok(Self { address: config.address, own, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the redirector; in place of that of a predecessor, or of a process that crashed, once it has a table.
    pub(crate) fn serve(&self) {
        let mut state = self.state();
        state.is_serving = true;
        state.attach();
    }

    /// Follows the record of the backend until the handle is dropped.
    pub(crate) fn follow(self: Arc<Self>, directory: &Directory) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(self.run(directory.replicas().clone())))
    }

    /// Keeps the table as the record of the backend says, and marks unreachable machines, until `replicas` closes.
    async fn run(self: Arc<Self>, mut replicas: watch::Receiver<BTreeSet<SocketAddr>>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = replicas.changed() => match changed {
                    Ok(()) => self.set_replicas(&replicas.borrow_and_update()),
                    Err(_) => return,
                },
                _ = ticks.tick() => self.probe(),
            }
        }
    }

    fn set_replicas(&self, replicas: &BTreeSet<SocketAddr>) {
        let of_version_4 = |replica: &SocketAddr| match replica {
            SocketAddr::V4(address) => Some(*address),
            SocketAddr::V6(_) => None,
        };
        let known: BTreeSet<SocketAddrV4> = replicas.iter().filter_map(of_version_4).collect();
        if known.len() < replicas.len() {
            tracing::warn!("replicas with an IPv6 address get no connections to --entry");
        }
        // Without replicas, all connections would end. The record may come back.
        if known.is_empty() {
            return tracing::warn!(
                "the backend of this gateway lists no replica: the table of --entry stays as it is"
            );
        }
        let mut state = self.state();
        let earlier = (mem::replace(&mut state.table, BucketTable::new(&known)), state.unreachable);
        let machines = known.iter().filter(|replica| SocketAddr::V4(**replica) != self.own);
        state.probes.set_machines(machines.map(|replica| *replica.ip()).collect());
        state.unreachable = state.judged();
        if let Err(error) = state.publish(self.own) {
            (state.table, state.unreachable) = earlier;
            return tracing::error!(%error, "the table of --entry stays as it was");
        }
        state.attach();
        if state.own(self.own).is_none() {
            tracing::warn!(listen = %self.own, "the record of the backend lacks --listen of this gateway: it gets no new connections to --entry");
        }
    }

    fn probe(&self) {
        let mut state = self.state();
        state.probes.probe();
        let unreachable = state.judged();
        if unreachable == state.unreachable {
            return;
        }
        if let Err(error) = state.redirector.set_unreachable(unreachable) {
            return tracing::error!(%error, "the redirector of --entry does not learn which machines answer; it is told again");
        }
        state.unreachable = unreachable;
        let named = state.unreachable_replicas();
        tracing::warn!(unreachable = ?named, "machines of other replicas answer no more, or again; connections that they hold are reset");
    }

    /// Whether the record lists this replica, so that others pass packets on to this machine.
    pub(crate) fn is_listed(&self) -> bool {
        self.state().own(self.own).is_some()
    }

    /// Detaches the redirector. Packets of the router are this machine's own from now on.
    pub(crate) fn detach(&self) -> Result<(), EntryError> {
        let mut state = self.state();
        state.is_serving = false;
        Ok(state.redirector.detach()?)
    }

    /// The present state, for reports and metrics.
    pub(crate) fn read(&self) -> EntryState {
        let state = self.state();
        let own = state.own(self.own);
        EntryState {
            counts: state.redirector.counts().unwrap_or_default(),
            head_buckets: own.map_or(0, |own| state.table.heads(own)),
            buckets: BUCKETS,
            unreachable: state.unreachable_replicas(),
        }
    }

    /// Registers the metrics with their current values.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let EntryState { counts, head_buckets, buckets, unreachable } = self.read();
        let rows = [
            ("held", counts.held),
            ("begun", counts.begun),
            ("passed_on", counts.passed_on),
            ("unclaimed", counts.unclaimed),
            ("discarded", counts.discarded),
            ("fragment", counts.fragments),
        ];
        let rows = rows.into_iter().map(|(outcome, count)| ([("outcome", outcome.into())], count));
        registry.counters("entry_packets", "Packets to the address of --entry, by what became of them", rows);
        let help = "Share of the new connections to the address of --entry that come to this replica";
        let share = head_buckets as f64 / buckets.max(1) as f64;
        registry.gauges("entry_share_ratio", help, [([("address", self.address.to_string().into())], share)]);
        let help = "Replicas of the backend whose machines do not answer";
        registry.gauge("entry_unreachable_replicas", help, unreachable.len() as u64);
        let help = "1 if the redirector of --entry is attached";
        registry.gauge("entry_attached", help, u64::from(self.state().is_attached));
    }
}

impl State {
    fn own(&self, own: SocketAddr) -> Option<u8> {
        match own {
            SocketAddr::V4(own) => self.table.position(own),
            SocketAddr::V6(_) => None,
        }
    }

    /// Attaches the redirector once this process serves. While it has no table, an earlier redirector is better than this one, and this
    /// one is better than none: without one, the kernel would reset connections of other replicas.
    fn attach(&mut self) {
        let is_worse = self.table.replicas().is_empty() && self.redirector.has_earlier();
        if self.is_attached || !self.is_serving || is_worse {
            return;
        }
        match self.redirector.attach() {
            Ok(()) => self.is_attached = true,
            Err(error) => {
                tracing::error!(%error, "the redirector of --entry is not attached: packets of other replicas' connections are reset here");
            }
        }
    }

    fn publish(&mut self, own: SocketAddr) -> Result<(), KernelError> {
        let own = self.own(own);
        let machines: Vec<_> = self.table.replicas().iter().map(|replica| *replica.ip()).collect();
        self.redirector.publish(Redirects {
            replicas: &machines,
            own,
            chains: self.table.chains(),
            version: self.table.version(),
            unreachable: self.unreachable,
        })
    }

    /// The replicas on machines that do not answer.
    fn judged(&self) -> u64 {
        let silent = self.table.replicas().iter().map(|replica| self.probes.is_silent(*replica.ip()));
        silent.enumerate().fold(0, |bits, (position, is_silent)| bits | u64::from(is_silent) << position)
    }

    fn unreachable_replicas(&self) -> Vec<SocketAddrV4> {
        let replicas = self.table.replicas().iter().enumerate();
        replicas.filter(|(position, _)| self.unreachable >> position & 1 == 1).map(|(_, one)| *one).collect()
    }
}
