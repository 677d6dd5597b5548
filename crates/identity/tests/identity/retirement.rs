//! Roots that are trusted no longer.

use std::{fs, path::Path, slice, sync::Arc, time::Duration};

use fairmesh_identity::{Authority, CLOCK_SKEW, IdentityError};
use fairmesh_model::TrustBundle;
use fairmesh_wire::transport::Transport;

use crate::support::*;

/// Another control plane with the same root.
fn other(ca: &Ca, begin: Duration) -> Authority {
    let (own, other) = (ca.folder.path().join("ca"), ca.folder.path().join("other"));
    fs::create_dir(&other).unwrap();
    for file in ["root.key", "bundle.pem"] {
        fs::copy(own.join(file), other.join(file)).unwrap();
    }
    open(&other, begin)
}

fn open(folder: &Path, begin: Duration) -> Authority {
    Authority::open(folder, &domain(), begin).unwrap()
}

fn with(roots: &[Vec<u8>]) -> TrustBundle {
    TrustBundle { domain: domain(), roots: roots.to_vec() }
}

#[test]
fn a_root_is_retired_once_nothing_hangs_from_it() {
    let ca = Ca::default();
    let begin = now();
    let in_use = |root: &[u8], why: &str| {
        let error = ca.authority.check_unused(&ca.authority.bundle(), root).unwrap_err();
        assert!(
            matches!(error, IdentityError::RootInUse { .. }) && error.to_string().contains(why),
            "{error}"
        );
    };
    let old = ca.authority.signing_root();
    in_use(&old, "is the newest one");
    ca.authority.begin_root(begin + HOUR).unwrap();
    let new = ca.authority.bundle().roots[1].clone();
    in_use(&old, "is that of the intermediate");
    ca.authority.rotate_issuer(begin + 10 * HOUR).unwrap();
    ca.authority.check_unused(&ca.authority.bundle(), &old).unwrap();
    in_use(&new, "is the newest one");
    let expired = begin + 34 * HOUR + CLOCK_SKEW;
    for early in [begin + 10 * HOUR, expired - Duration::from_secs(2)] {
        let error = ca.authority.check_expired_beneath(&old, early).unwrap_err();
        assert!(matches!(error, IdentityError::RecentRoot { .. }), "{error}");
    }
    ca.authority.check_expired_beneath(&old, expired).unwrap();
    ca.authority.forget_root(&old).unwrap();
    let again = open(&ca.folder.path().join("ca"), expired);
    for authority in [&ca.authority, &again] {
        assert_eq!(authority.bundle().roots, slice::from_ref(&new));
    }
    ca.authority.forget_root(&new).unwrap();
    assert_eq!(ca.authority.bundle().roots, [new], "the last one stays");
}

#[test]
fn a_root_whose_key_is_there_to_sign_is_not_retired() {
    let ca = Ca::default();
    let (old, file) = (ca.authority.signing_root(), ca.folder.path().join("ca/root.key"));
    let key = fs::read(&file).unwrap();
    ca.authority.begin_root(now()).unwrap();
    ca.authority.rotate_issuer(now()).unwrap();
    ca.authority.check_unused(&ca.authority.bundle(), &old).unwrap();
    fs::write(&file, key).unwrap();
    let error = ca.authority.check_unused(&ca.authority.bundle(), &old).unwrap_err().to_string();
    assert!(error.contains("ca/root.key"), "{error}");
}

#[test]
fn a_retired_root_comes_back_only_where_it_signs() {
    let ca = Ca::default();
    let second = other(&ca, now());
    let old = ca.authority.signing_root();
    ca.authority.begin_root(now() + HOUR).unwrap();
    let new = ca.authority.bundle().roots[1].clone();
    // One that has just begun is recorded, beside the one that signs.
    let missing = |authority: &Authority, roots: &[Vec<u8>]| authority.missing_in(&with(roots)).unwrap();
    assert_eq!(missing(&ca.authority, slice::from_ref(&old)), slice::from_ref(&new));
    assert_eq!(missing(&ca.authority, slice::from_ref(&new)), slice::from_ref(&old));
    ca.authority.rotate_issuer(now() + HOUR).unwrap();
    assert!(missing(&ca.authority, slice::from_ref(&new)).is_empty(), "it was retired elsewhere");
    assert_eq!(missing(&second, slice::from_ref(&new)), [old], "it signs");
}

#[tokio::test]
async fn peers_are_known_by_the_root_beneath_which_their_certificates_are() {
    let ca = Ca::default();
    let old = ca.authority.signing_root();
    let agent = ca.workload("fairmesh/agent/web-1");
    ca.authority.begin_root(now()).unwrap();
    let new = ca.authority.bundle().roots[1].clone();
    let control = ca.workload("fairmesh/control/one");
    control.note_roots_of_peers();
    let beneath = |root: &[u8]| control.peers_beneath(root).unwrap().into_iter().collect::<Vec<_>>();
    let connected = connect(&Transport::tls(agent), &Transport::tls(Arc::clone(&control) as _)).await;
    assert_eq!((beneath(&old), beneath(&new)), (vec![id("fairmesh/agent/web-1")], vec![]));
    drop(connected);
    assert!(beneath(&old).is_empty());
    control.peers_beneath(b"no certificate").unwrap_err();
}
