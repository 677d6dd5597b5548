//! The owner of the maps.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{self, Command},
};

use fairmesh_kernel::{KernelError, KernelSender, ProxyMaps, Selection, detach, status};
use fairmesh_test_support::skipped;

use crate::place::Place;

/// Environment variables for a process without capabilities: the directory of pins, and a flag that root owns
/// the maps.
const PINS: &str = "FAIRMESH_TEST_PINS";
const NO_OWNER: &str = "FAIRMESH_TEST_NO_OWNER";
/// The user `nobody`.
const NOBODY: u32 = 65_534;

#[test]
fn owner_of_pinned_maps_needs_no_capability() {
    if let Some(pins) = std::env::var_os(PINS).map(PathBuf::from) {
        if std::env::var_os(NO_OWNER).is_some() {
            return is_told_to_name_the_owner(&pins);
        }
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let _maps = ProxyMaps::register(&pins, &proxy, false, None).unwrap();
        let sender = KernelSender::open(&pins).unwrap().unwrap();
        assert!(
            sender.add_caller(1, ([127, 0, 0, 1], 1).into(), None).is_some() && sender.take_block().is_some()
        );
        assert!(detach(&pins).is_err(), "links are root's");
        return assert_eq!(status(&pins).unwrap().proxy, Some(process::id()));
    }
    let Some(place) = Place::new("owner") else { return };
    for owner in [None, Some(NOBODY)] {
        let selection = Selection { ports: vec![1], ..Selection::default() };
        place.attach(&place.cgroup, selection, owner).unwrap();
        let nobody = format!("--reuid={NOBODY}");
        let mut command = Command::new("setpriv");
        command.args([&nobody, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "owner::owner_of_pinned_maps_needs_no_capability", "--nocapture"]);
        if owner.is_none() {
            command.env(NO_OWNER, "1");
        }
        let output = match command.env(PINS, place.pins()).output() {
            Ok(output) => output,
            Err(error) => return skipped("setpriv takes capabilities away", error),
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A user who may not open the maps must get the hint to name the owner, not the hint to detach.
fn is_told_to_name_the_owner(pins: &Path) {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusals = [
        status(pins).unwrap_err(),
        ProxyMaps::register(pins, &proxy, false, None).unwrap_err(),
        KernelSender::open(pins).unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, KernelError::NoAccess(_)), "{refusal}");
        assert!(refusal.to_string().contains("--owner"), "{refusal}");
    }
}
