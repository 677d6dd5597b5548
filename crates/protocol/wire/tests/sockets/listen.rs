//! Handling of socket files and ports by listeners.

use std::{fs, os::unix::fs::PermissionsExt, os::unix::net::UnixListener};

use crate::support::*;
use fairmesh_wire::transport::{Address, BindError, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn socket_file_of_dead_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the standard library leaves the file behind, as a crash does");
    let address = Address::Unix(path.clone());
    let listener = Transport::default().bind(&address).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    let mut dialled = Transport::default().dial(&address).await.unwrap();
    let mut accepted = soon(listener.accept()).await.handshake().await.unwrap();
    assert_eq!(accepted.identity(), &own_uid());
    dialled.write_all(b"hello").await.unwrap();
    let mut read = [0; 5];
    soon(accepted.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"hello");
}

#[tokio::test]
async fn socket_file_in_use_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let address = Address::Unix(path.clone());
    let stranger = UnixListener::bind(&path).unwrap();
    assert!(matches!(Transport::default().bind(&address).await, Err(BindError::InUse { .. })));
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "the other process still listens");
    drop(stranger);
    let first = Transport::default().bind(&address).await.unwrap();
    let error = Transport::default().bind(&address).await.unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("agent.sock"), "{error}");
    drop(first);
    assert!(!path.exists(), "the file goes with its listener");
    assert!(Transport::default().bind(&address).await.is_ok());
}

#[tokio::test]
async fn files_other_than_sockets_are_never_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    fs::write(&path, "precious").unwrap();
    let error = Transport::default().bind(&Address::Unix(path.clone())).await.unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn socket_file_of_successor_outlives_predecessor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let first = Transport::default().bind(&Address::Unix(path.clone())).await.unwrap();
    fs::remove_file(&path).unwrap();
    let _successor = UnixListener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
}

#[tokio::test]
async fn listening_on_port_in_use_is_refused() {
    let first = Transport::default().bind(&free_port()).await.unwrap();
    let error = Transport::default().bind(&first.address().unwrap()).await.unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    let error = Transport::default().bind(&"192.0.2.1:1".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, BindError::Failed { .. }), "{error}");
}
