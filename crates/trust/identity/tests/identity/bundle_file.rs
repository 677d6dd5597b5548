//! Tests of roots that an operator puts into an identity's folder.

use std::{fs, sync::Arc, time::Duration};

use fairmesh_identity::{Workload, follow_bundle};
use fairmesh_test_support::eventually;
use fairmesh_wire::transport::Transport;

use super::support::{Ca, connect, now};

fn roots(workload: &Workload) -> usize {
    workload.credentials().unwrap().trust().bundle().roots.len()
}

/// Advances the clock by `time`.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn changed_bundle_file_is_trusted_if_it_contains_own_root() {
    let (ca, next) = (Ca::default(), Ca::default());
    let folder = tempfile::tempdir().unwrap();
    let own = ca.credentials("fairmesh/agent/web-1", now());
    own.save(folder.path()).unwrap();
    let workload = Arc::<Workload>::default();
    workload.install(own).unwrap();
    let path = folder.path().join("bundle.pem");
    let (followed, of) = (Arc::clone(&workload), folder.path().to_owned());
    let _following = tokio::spawn(async move { follow_bundle(&followed, &of).await });
    tokio::task::yield_now().await;
    let both = fs::read_to_string(&path).unwrap()
        + &fs::read_to_string(next.folder.path().join("ca/bundle.pem")).unwrap();
    let (transport, control) = (Transport::tls(workload.clone()), next.transport("fairmesh/control/one"));
    assert!(connect(&transport, &control).await.0.is_err(), "its root is not known yet");

    fs::write(&path, &both).unwrap();
    pass(Duration::from_secs(6)).await;
    eventually("both roots are trusted", || roots(&workload) == 2).await;
    let (dialled, _) = connect(&transport, &control).await;
    assert!(dialled.is_ok(), "{dialled:?}");

    // Mistakes: a file without the identity's own root, an empty file, and a file without certificates.
    for wrong in
        [&fs::read_to_string(next.folder.path().join("ca/bundle.pem")).unwrap(), "", "no certificate"]
    {
        fs::write(&path, wrong).unwrap();
        pass(Duration::from_secs(6)).await;
        tokio::task::yield_now().await;
        assert_eq!(roots(&workload), 2, "{wrong}");
    }
    fs::remove_file(&path).unwrap();
    pass(Duration::from_secs(6)).await;
    tokio::task::yield_now().await;
    assert_eq!(roots(&workload), 2);
    fs::copy(ca.folder.path().join("ca/bundle.pem"), &path).unwrap();
    pass(Duration::from_secs(6)).await;
    eventually("the other root is trusted no more", || roots(&workload) == 1).await;
}
