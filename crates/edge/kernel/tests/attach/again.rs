//! Attaching again with other options.

use std::{fs, num::NonZeroU32, thread};

use fairmesh_kernel::{Attachments, Counter, KernelError, Selection, attach, detach, status};
use fairmesh_test_support::eventually_blocking;

use crate::place::{Place, callers, counted, folder_of};

#[test]
fn repeated_kernel_attach_keeps_omitted_options() {
    let Some(place) = Place::new("repeated") else { return };
    let networks = || vec![([127, 96, 0, 0].into(), 16)];
    let first = Attachments {
        only_services: Some(true),
        max_in_flight: Some(7),
        short_cut: Some(false),
        ..callers(&place.cgroup, Selection { networks: networks(), ports: Vec::new() })
    };
    attach(&place.pins(), &first).unwrap();
    let own = || status(&place.pins()).unwrap().attachments.remove(0);
    let shown = || {
        let own = own();
        let most = own.max_in_flight.map(NonZeroU32::get);
        (own.networks, own.ports, own.only_services, most, own.short_cut)
    };
    assert_eq!(shown(), (networks(), vec![80], true, Some(7), false));

    let ports = || Selection { ports: vec![81, 82], ..Selection::default() };
    place.attach(&place.cgroup, ports(), None).unwrap();
    assert_eq!(shown(), (networks(), vec![81, 82], true, Some(7), false));
    let refused = place.connect(([127, 96, 7, 5], 82).into());
    assert!(refused.contains("Connection refused"), "{refused}");
    assert_eq!(counted(&place, Counter::Refused), 1);
    place.connect(([127, 96, 7, 5], 80).into());
    assert_eq!(counted(&place, Counter::Refused), 1, "port 80 is selected no longer");

    let anywhere = Selection { networks: vec![([0, 0, 0, 0].into(), 0)], ports: Vec::new() };
    let other = Attachments {
        only_services: Some(false),
        max_in_flight: Some(0),
        short_cut: Some(true),
        ..callers(&place.cgroup, anywhere)
    };
    attach(&place.pins(), &other).unwrap();
    let none = vec![([0, 0, 0, 0].into(), 0)];
    assert_eq!(shown(), (none, vec![81, 82], false, None, true));
    let links = fs::read_dir(place.pins()).unwrap().flatten();
    let links = links.filter(|pin| pin.file_name().to_string_lossy().starts_with("link-")).count();
    assert_eq!(links, 5, "of getpeername and connect, each for IPv4 and IPv6, and of connections");
}

/// A program that allows every IPv6 connect. It is attached so that descendants of this cgroup cannot attach
/// any program.
mod exclusive {
    #![allow(unsafe_code, reason = "no library attaches one in this way any more")]

    use std::{
        fs::File,
        os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        path::Path,
    };

    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const SOCK_ADDR: u32 = 18;
    const INET6_CONNECT: u32 = 11;

    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        at: u64,
        license: u64,
        unused: [u32; 10],
        interface: u32,
        attach_type: u32,
    }

    pub(super) fn attach(cgroup: &Path) -> OwnedFd {
        // r0 = 1; exit
        let program = [0x1_0000_00b7_u64, 0x95];
        let load = Load {
            kind: SOCK_ADDR,
            instructions: 2,
            at: program.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            unused: [0; 10],
            interface: 0,
            attach_type: INET6_CONNECT,
        };
        // SAFETY: the kernel reads the attributes, with their given size, and the data they point to, which outlives
        // the call.
        let loaded = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
        assert!(loaded >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just opened the descriptor.
        let program = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(loaded).unwrap()) };
        let folder = File::open(cgroup).unwrap();
        let to = [folder.as_raw_fd() as u32, program.as_raw_fd() as u32, INET6_CONNECT, 0];
        // SAFETY: as above.
        let attached = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, to.as_ptr(), size_of_val(&to)) };
        assert!(attached >= 0, "{}", std::io::Error::last_os_error());
        program
    }
}

#[test]
fn failed_kernel_attach_keeps_earlier_attachment() {
    let Some(place) = Place::new("fails") else { return };
    let inner = format!("{}/inner", place.cgroup);
    let guarded = Attachments {
        only_services: Some(true),
        ..callers(&inner, Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: Vec::new() })
    };
    attach(&place.pins(), &guarded).unwrap();
    let _program = exclusive::attach(&folder_of(&place.cgroup));
    let open = Attachments {
        only_services: Some(false),
        ..callers(&inner, Selection { ports: vec![81], ..Selection::default() })
    };
    let refused = attach(&place.pins(), &open);
    assert!(matches!(refused, Err(KernelError::Refused { .. })), "{refused:?}");
    let own = status(&place.pins()).unwrap().attachments.remove(0);
    assert_eq!((own.only_services, own.ports), (true, vec![80]));
    let said = Place::connect_from(&inner, ([127, 96, 7, 6], 80).into());
    assert!(said.contains("Connection refused"), "{said}");
    assert_eq!(counted(&place, Counter::Refused), 1);
}

#[test]
fn attach_cannot_switch_off_socket_short_cut_in_use() {
    let Some(place) = Place::new("short") else { return };
    place.attach(&place.cgroup, Selection::default(), None).unwrap();
    let without = |cgroup| Attachments { short_cut: Some(false), ..callers(cgroup, Selection::default()) };
    let other = format!("{}-other", place.cgroup);
    for cgroup in [&place.cgroup, &other] {
        let refused = attach(&place.pins(), &without(cgroup)).unwrap_err().to_string();
        assert!(
            refused.contains("fairmesh kernel detach") && refused.contains("--no-short-cut"),
            "{refused}"
        );
    }
    assert_eq!(status(&place.pins()).unwrap().attachments.len(), 1);
    assert!(!folder_of(&other).exists());
    detach(&place.pins()).unwrap();
    attach(&place.pins(), &without(&place.cgroup)).unwrap();
    // The setting applies to all cgroups.
    place.attach(&other, Selection::default(), None).unwrap();
    assert!(status(&place.pins()).unwrap().attachments.iter().all(|one| !one.short_cut));
}

#[test]
fn attach_removes_pins_of_cgroups_that_are_gone() {
    let Some(place) = Place::new("gone") else { return };
    let gone = format!("{}-gone", place.cgroup);
    place.attach(&gone, Selection::default(), None).unwrap();
    fs::remove_dir(folder_of(&gone)).unwrap();
    // The kernel releases a removed cgroup some time later.
    eventually_blocking("the removed cgroup is detached", || {
        place.attach(&place.cgroup, Selection::default(), None).unwrap();
        status(&place.pins()).unwrap().attachments.len() == 1
    });
    let pins = fs::read_dir(place.pins()).unwrap().map(|pin| pin.unwrap().file_name());
    let links = pins.filter(|pin| pin.to_string_lossy().starts_with("link-"));
    assert_eq!(links.count(), 5);
}

#[test]
fn attach_commands_at_the_same_time_wait_for_each_other() {
    let Some(place) = Place::new("at-once") else { return };
    let cgroups: Vec<_> = (1..=6).map(|at| format!("{}-{at}", place.cgroup)).collect();
    thread::scope(|scope| {
        for (cgroup, most) in cgroups.iter().zip(1..) {
            let pins = place.pins();
            scope.spawn(move || {
                let limited =
                    Attachments { max_in_flight: Some(most), ..callers(cgroup, Selection::default()) };
                attach(&pins, &limited).unwrap();
            });
        }
    });
    let shown: Vec<_> = status(&place.pins())
        .unwrap()
        .attachments
        .into_iter()
        .map(|one| (one.cgroup, one.max_in_flight.map(NonZeroU32::get)))
        .collect();
    let expected: Vec<_> = cgroups.into_iter().zip((1..).map(Some)).collect();
    assert_eq!(shown, expected, "each cgroup has counters of its own");
    let links = fs::read_dir(place.pins()).unwrap().flatten();
    let links = links.filter(|pin| pin.file_name().to_string_lossy().starts_with("link-")).count();
    assert_eq!(links, 6 * 5);
}
