//! Tests of the retirement of roots.

use std::{fs, path::Path, slice, sync::Arc, time::Duration};

use fairmesh_identity::{Authority, CLOCK_SKEW, IdentityError, sha256};
use fairmesh_model::{MAX_ROOTS, TrustBundle};
use fairmesh_wire::transport::Transport;

use crate::support::*;

/// Opens another control plane's authority with the same root.
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

#[test]
fn root_is_retired_once_no_valid_certificate_depends_on_it() {
    let ca = Ca::default();
    let begin = now();
    let in_use = |root: &[u8], why: &str| {
        let unused = ca.authority.check_unused(&ca.authority.bundle(), root, begin + 10 * HOUR);
        let error = unused.unwrap_err();
        assert!(
            matches!(error, IdentityError::RootInUse { .. }) && error.to_string().contains(why),
            "{error}"
        );
    };
    let old = ca.authority.signing_root();
    in_use(&old, "is that of the intermediate");
    ca.authority.begin_root(begin + HOUR).unwrap();
    let new = ca.authority.bundle().roots[1].clone();
    in_use(&old, "is that of the intermediate");
    ca.authority.rotate_issuer(begin + 10 * HOUR).unwrap();
    ca.authority.check_unused(&ca.authority.bundle(), &old, begin + 10 * HOUR).unwrap();
    in_use(&new, "is that of the intermediate");
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
fn root_whose_key_is_present_is_not_retired() {
    let ca = Ca::default();
    let (old, file) = (ca.authority.signing_root(), ca.folder.path().join("ca/root.key"));
    let key = fs::read(&file).unwrap();
    ca.authority.begin_root(now()).unwrap();
    ca.authority.rotate_issuer(now()).unwrap();
    ca.authority.check_unused(&ca.authority.bundle(), &old, now()).unwrap();
    fs::write(&file, key).unwrap();
    let error = ca.authority.check_unused(&ca.authority.bundle(), &old, now()).unwrap_err().to_string();
    assert!(error.contains("ca/root.key"), "{error}");
}

#[test]
fn recorded_trust_bundle_is_completed_with_unretired_roots() {
    let ca = Ca::default();
    let old = ca.authority.signing_root();
    ca.authority.begin_root(now() + HOUR).unwrap();
    let new = ca.authority.bundle().roots[1].clone();
    let completed = |roots: &[&Vec<u8>], retired: &[&Vec<u8>]| {
        let retired = retired.iter().map(|root| sha256(root)).collect();
        let roots = roots.iter().map(|root| root.to_vec()).collect();
        ca.authority.complete(Some(TrustBundle { retired, ..TrustBundle::new(domain(), roots) }), now()).roots
    };
    let both = vec![old.clone(), new.clone()];
    assert_eq!(ca.authority.complete(None, now()).roots, both);
    // The newest root comes last, whatever the order in which roots were recorded.
    for recorded in [&[&old][..], &[&new], &[&new, &old]] {
        assert_eq!(completed(recorded, &[]), both);
    }
    assert_eq!(completed(&[&new], &[&old]), slice::from_ref(&new));
    let kept = (0..MAX_ROOTS).map(|_| Ca::default().authority.signing_root()).collect::<Vec<_>>();
    let full = completed(&kept.iter().collect::<Vec<_>>(), &[]);
    assert_eq!((full.len(), full.last()), (MAX_ROOTS, Some(&new)));
    assert!(full.contains(&old), "it signs");
    assert!(completed(&full.iter().collect::<Vec<_>>(), &[]) == full, "nothing changes again");
}

#[test]
fn new_active_control_plane_adopts_recorded_roots() {
    let ca = Ca::default();
    let second = ca.folder.path().join("other");
    drop(other(&ca, now()));
    ca.authority.begin_root(now() + HOUR).unwrap();
    let [old, new] = <[Vec<u8>; 2]>::try_from(ca.authority.bundle().roots).unwrap();
    let bundle = |roots: &[&Vec<u8>], retired: &[&Vec<u8>]| TrustBundle {
        retired: retired.iter().map(|root| sha256(root)).collect(),
        ..TrustBundle::new(domain(), roots.iter().map(|root| root.to_vec()).collect())
    };
    let reopen = || Authority::open(&second, &domain(), now() + 2 * HOUR);
    let put = |file: &str| fs::copy(ca.folder.path().join("ca").join(file), second.join(file)).unwrap();
    // The recorded roots are now in the folder, so an intermediate under any of them can be installed.
    assert!(Authority::adopt(&second, &bundle(&[&old, &new], &[])).unwrap());
    let opened = reopen().unwrap();
    assert_eq!((opened.bundle().roots, opened.signing_root()), (vec![old.clone(), new.clone()], old.clone()));
    // Both the intermediate and the root key belong to the retired root.
    assert!(Authority::adopt(&second, &bundle(&[&new], &[&old])).unwrap());
    let error = reopen().unwrap_err();
    assert!(matches!(error, IdentityError::OtherRootKey { .. }), "{error}");
    fs::remove_file(second.join("root.key")).unwrap();
    let error = reopen().unwrap_err();
    assert!(matches!(error, IdentityError::OrphanIssuer { .. }), "{error}");
    let before = fs::read(second.join("issuer.key")).unwrap();
    put("root.key");
    let again = reopen().unwrap();
    assert_eq!((again.bundle().roots, again.signing_root()), (vec![new.clone()], new));
    assert_eq!(fs::read(second.join("unused-issuer.key")).unwrap(), before);
    // A bundle of another domain, and an empty bundle.
    let foreign = Ca::default().authority.signing_root();
    assert!(!Authority::adopt(&second, &bundle(&[&foreign], &[])).unwrap());
    assert!(!Authority::adopt(&second.join("none"), &bundle(&[&foreign], &[])).unwrap());
}

#[test]
fn root_keeps_issuing_start_time_when_intermediate_is_rotated() {
    let ca = Ca::default();
    let begin = now();
    let root = ca.authority.signing_root();
    ca.authority.rotate_issuer(begin + 20 * HOUR).unwrap();
    ca.authority.check_expired_beneath(&root, begin + 25 * HOUR).unwrap();
}

#[tokio::test]
async fn connected_peers_are_listed_by_root_of_their_certificate() {
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
