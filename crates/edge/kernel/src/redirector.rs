//! The redirector of a gateway's replica: a program on packets that arrive at an interface, and its maps (`bpf/entry`).
//!
//! The program stays attached when its process crashes. It then passes on the packets of other replicas' connections, which a router
//! still sends to this machine. A process that starts replaces the program in one step.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, MapData, MapError, PerCpuArray},
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        links::{FdLink, Link as _, PinnedLink},
        tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
    },
    util::KernelVersion,
};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use crate::{KernelError, bpf_pins};

/// Default directory of the pins of redirectors.
pub const DEFAULT_ENTRY_PINS: &str = "/sys/fs/bpf/fairmesh-entry";

/// The compiled program. Aligned, since aya parses the object in place.
#[cfg(has_programs)]
static OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirector.bpf.o")));
#[cfg(not(has_programs))]
static OBJECT: Option<&[u8]> = None;

const PROGRAM: &str = "redirector";
/// Buckets, and the most replicas, of a table, as in `bpf/entry/redirect.h`.
const BUCKETS: u32 = 4096;
const REPLICAS: u32 = 64;
const CHAIN: usize = 8;
const NO_REPLICA: u8 = u8::MAX;
/// Where clsact has the program; no other program may have the same place.
const PRIORITY: u16 = 0xfa17;
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// How programs on packets are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketHook {
    /// TCX, from Linux 6.6 on.
    Tcx,
    /// A filter of the queueing discipline clsact.
    Clsact,
}

/// The table of a backend, as packets are redirected by it.
#[derive(Clone, Copy, Debug)]
pub struct Redirects<'a> {
    /// The machines of the replicas; at most 64.
    pub replicas: &'a [Ipv4Addr],
    /// Position of this replica; `None` if the table lacks it.
    pub own: Option<u8>,
    /// The chain of each of the 4,096 buckets: positions of replicas, then 255.
    pub chains: &'a [[u8; CHAIN]],
    /// Number of the table, below 32.
    pub version: u8,
    /// Replicas that cannot be reached, one bit for each position.
    pub unreachable: u64,
}

/// Packets to the shared address since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets of connections that this machine holds.
    pub held: u64,
    /// First packets of connections that this machine accepts.
    pub begun: u64,
    /// Packets passed on to other replicas.
    pub passed_on: u64,
    /// Packets of connections that no replica holds, which are reset.
    pub unclaimed: u64,
    /// Packets dropped since replicas have different tables, or none.
    pub discarded: u64,
    /// Dropped fragments.
    pub fragments: u64,
}

/// The program and its maps.
#[derive(Debug)]
pub struct Redirector {
    programs: Ebpf,
    interface: String,
    hook: PacketHook,
    /// Where the link of the program is pinned.
    pin: PathBuf,
    /// Which half of the maps is in force.
    half: u32,
}

impl PacketHook {
    /// The newest one that this kernel has.
    pub fn of_this_kernel() -> Self {
        let has_tcx = KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0));
        if has_tcx { Self::Tcx } else { Self::Clsact }
    }
}

impl Redirector {
    /// Loads the program for a shared address and an interface in the network namespace of this thread, with an empty table: packets of
    /// connections that this machine does not hold are dropped until [`publish`](Self::publish).
    ///
    /// # Errors
    /// The interface is unknown, this process lacks permission, or the kernel refuses the program.
    pub fn load(
        entry: SocketAddrV4,
        interface: &str,
        (hook, pins): (PacketHook, &Path),
    ) -> Result<Self, KernelError> {
        let object = OBJECT.ok_or(KernelError::NoPrograms)?;
        let pin = pins.join(pin_name(interface)?);
        if hook == PacketHook::Tcx {
            bpf_pins::create(pins)?;
        }
        let (address, port) = (u32::from_ne_bytes(entry.ip().octets()), u32::from(entry.port().to_be()));
        let mut loader = EbpfLoader::new();
        let loader = loader.override_global("entry_address", &address, true);
        let loader = loader.override_global("entry_port", &port, true);
        let programs =
            loader.load(object).map_err(|error| KernelError::refused("a map of the redirector", &error))?;
        let mut this = Self { programs, interface: interface.to_owned(), hook, pin, half: 0 };
        this.program()?.load().map_err(|error| refused(&error))?;
        let chains = [[NO_REPLICA; CHAIN]; BUCKETS as usize];
        this.publish(Redirects { replicas: &[], own: None, chains: &chains, version: 0, unreachable: 0 })?;
        Ok(this)
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, KernelError> {
        let program = self.programs.program_mut(PROGRAM).ok_or(KernelError::NoPrograms)?;
        program.try_into().map_err(|error: ProgramError| refused(&error))
    }

    fn map<V: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, V>, KernelError> {
        let map = self.programs.map_mut(name).ok_or(KernelError::NoPrograms)?;
        map.try_into().map_err(|error: MapError| refused_map(name, &error))
    }

    fn set<V: Pod>(
        &mut self,
        name: &str,
        from: u32,
        values: impl Iterator<Item = V>,
    ) -> Result<(), KernelError> {
        let mut map = self.map(name)?;
        let set = |(at, value)| map.set(at, value, 0).map_err(|error| refused_map(name, &error));
        (from..).zip(values).try_for_each(set)
    }

    /// Puts a table in force. Packets are redirected by the table before or by this one, never by parts of both.
    ///
    /// # Errors
    /// The kernel refuses it; the table before stays in force.
    pub fn publish(&mut self, redirects: Redirects<'_>) -> Result<(), KernelError> {
        let half = 1 - self.half;
        let replicas = redirects.replicas.iter().take(REPLICAS as usize);
        self.set("replicas", half * REPLICAS, replicas.map(|address| u32::from_ne_bytes(address.octets())))?;
        let chains = redirects.chains.iter().take(BUCKETS as usize);
        self.set("chains", half * BUCKETS, chains.map(|chain| u64::from_le_bytes(*chain)))?;
        self.set("unreachable", half, [redirects.unreachable].into_iter())?;
        let own = u64::from(redirects.own.unwrap_or(NO_REPLICA));
        let word = u64::from(half) | own << 8 | u64::from(redirects.version) << 16;
        self.set("table", 0, [word].into_iter())?;
        self.half = half;
        Ok(())
    }

    /// Sets which replicas of the table in force cannot be reached, one bit for each position.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_unreachable(&mut self, unreachable: u64) -> Result<(), KernelError> {
        self.set("unreachable", self.half, [unreachable].into_iter())
    }

    /// Counts of packets.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn counts(&self) -> Result<PacketCounts, KernelError> {
        let map = self.programs.map("counts").ok_or(KernelError::NoPrograms)?;
        let counts: PerCpuArray<&MapData, u64> =
            map.try_into().map_err(|error: MapError| refused_map("counts", &error))?;
        let count = |which: u32| -> Result<u64, KernelError> {
            let values = counts.get(&which, 0).map_err(|error| refused_map("counts", &error))?;
            Ok(values.iter().sum())
        };
        Ok(PacketCounts {
            held: count(0)?,
            begun: count(1)?,
            passed_on: count(2)?,
            unclaimed: count(3)?,
            discarded: count(4)?,
            fragments: count(5)?,
        })
    }

    /// Whether the program of an earlier process may be attached. Never with clsact, where this is not known.
    pub fn has_earlier(&self) -> bool {
        self.hook == PacketHook::Tcx && self.pin.exists()
    }

    /// Attaches the program to the interface, in place of that of an earlier process.
    ///
    /// # Errors
    /// The kernel refuses it; an earlier program stays attached.
    pub fn attach(&mut self) -> Result<(), KernelError> {
        match self.hook {
            PacketHook::Tcx => self.attach_link(),
            PacketHook::Clsact => self.attach_filter(),
        }
    }

    fn attach_link(&mut self) -> Result<(), KernelError> {
        let (pin, interface) = (self.pin.clone(), self.interface.clone());
        if self.replace_link(&pin)? {
            return Ok(());
        }
        let program = self.program()?;
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let attached = program.attach_with_options(&interface, TcAttachType::Ingress, options);
        let link = attached.and_then(|id| program.take_link(id)).map_err(|error| refused(&error))?;
        let link = FdLink::try_from(link).map_err(|error| refused(&error))?;
        link.pin(&pin).map(drop).map_err(|error| refused(&error))
    }

    /// Puts the program in the place of a pinned one. False if there is none, or if its interface is gone.
    fn replace_link(&mut self, pin: &Path) -> Result<bool, KernelError> {
        let program = self.program()?;
        let link = match PinnedLink::from_pin(pin) {
            Ok(pinned) => SchedClassifierLink::try_from(FdLink::from(pinned)),
            Err(_) if !pin.exists() => return Ok(false),
            Err(error) => Err(error),
        };
        let mut replace = |link| program.attach_to_link(link).and_then(|id| program.take_link(id));
        // The pin keeps the link; this process keeps no descriptor, so that removing the pin detaches the program.
        if link.ok().is_some_and(|link| replace(link).is_ok()) {
            return Ok(true);
        }
        fs::remove_file(pin).map_err(KernelError::file(pin))?;
        Ok(false)
    }

    fn attach_filter(&mut self) -> Result<(), KernelError> {
        let interface = self.interface.clone();
        // Fails if there is one; what it lacks, the next step reports.
        let _ = tc::qdisc_add_clsact(&interface);
        let program = self.program()?;
        let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
        let options = TcAttachOptions::Netlink(options);
        let attached = match program.attach_with_options(&interface, TcAttachType::Ingress, options) {
            Ok(id) => Ok(id),
            // An earlier process attached its program there.
            Err(_) => program.attach_to_link(filter(&interface).map_err(KernelError::file(&interface))?),
        };
        let link = attached.and_then(|id| program.take_link(id)).map_err(|error| refused(&error))?;
        // Dropped, it would remove the filter.
        std::mem::forget(link);
        Ok(())
    }

    /// Detaches the program. Nothing stays on the interface but, without TCX, an empty clsact, which others may use.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn detach(&self) -> Result<(), KernelError> {
        match self.hook {
            PacketHook::Tcx if self.pin.exists() => {
                fs::remove_file(&self.pin).map_err(KernelError::file(&self.pin))
            }
            PacketHook::Tcx => Ok(()),
            PacketHook::Clsact => {
                let link = filter(&self.interface).map_err(KernelError::file(&self.interface))?;
                link.detach().map_err(|error| refused(&error))
            }
        }
    }
}

/// The filter of clsact. It is detached where the value is dropped.
fn filter(interface: &str) -> io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None)
}

/// A name for the link of this interface, which is unique among all network namespaces.
fn pin_name(interface: &str) -> Result<String, KernelError> {
    let file = |path: &str| KernelError::file(path.to_owned());
    let namespace = "/proc/thread-self/ns/net";
    let number = fs::metadata(namespace).map_err(file(namespace))?.ino();
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(io::Error::from);
    let index = any.and_then(|any| name_to_index(any, interface).map_err(io::Error::from));
    let index = index.map_err(|_| KernelError::NoInterface(interface.to_owned()))?;
    Ok(format!("link-{number}-{index}"))
}

fn refused(error: &dyn std::error::Error) -> KernelError {
    KernelError::refused("the redirector", error)
}

fn refused_map(name: &str, error: &dyn std::error::Error) -> KernelError {
    KernelError::refused(format!("map {name} of the redirector"), error)
}
