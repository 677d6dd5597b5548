use std::{path::Path, sync::Arc};

use fairmesh_identity::Member;
use fairmesh_model::{DefaultAuthorization, Record, RecordKey};
use fairmesh_replica::{Replica, ReplicaConfig, ReplicaError};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::{Address, Transport},
    v1,
};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    members::{TestMember, join, own, start_strict},
    support::{BOUND, TestControl, put},
};

/// A strict control plane that allows nothing by default, and a replica with its own certificate. The replica does
/// not sign the calls that it forwards.
pub(crate) struct StrictReplica {
    pub(crate) control: TestControl,
    pub(crate) address: Address,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ReplicaError>>,
}

impl StrictReplica {
    pub(crate) async fn start(folder: &Path) -> Self {
        let control = start_strict(&folder.join("control")).await;
        let default =
            record_encoding::encode(&Record::DefaultAuthorization(DefaultAuthorization::Deny)).to_vec();
        let ops = vec![put(RecordKey::DefaultAuthorization.to_string(), default)];
        own(&control).await.rib().write(v1::WriteRequest { ops }).await.unwrap();
        let beside = join(&control, "rib-1", &[], "eu").await;
        let transport = beside.issue(&control, "fairmesh/replica/rib-1.eu").await.unwrap().transport();
        let config = ReplicaConfig {
            transport,
            upstreams: vec![control.grpc[0].clone()],
            listen: vec![Address::Tcp("127.0.0.1:0".into())],
            state_dir: folder.join("replica"),
            advertise: Vec::new(),
            name: "eu".into(),
            region: None,
            metrics: None,
        };
        let replica = Replica::start(config).await.unwrap();
        let address = replica.addresses().unwrap().remove(0);
        let stop = CancellationToken::new();
        let task = tokio::spawn(replica.run(stop.clone().cancelled_owned()));
        let started = Self { control, address, stop, task };
        started.wait_for_copy(&beside).await;
        started
    }

    /// Waits until the replica authorizes calls.
    async fn wait_for_copy(&self, member: &TestMember) {
        let ready = async {
            loop {
                let read = v1::ReadImbalanceRequest::default();
                let connected = handshake::connect(&member.transport(), &self.address, "test").await;
                match connected.unwrap().imbalance().read(read).await {
                    Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                    _ => return,
                }
            }
        };
        timeout(BOUND, ready).await.expect("it follows the control plane");
    }

    /// Connects as a member that does not sign its calls.
    pub(crate) async fn connect(&self, member: &TestMember) -> Connection {
        handshake::connect(&member.transport(), &self.address, "test").await.unwrap()
    }

    /// Connects as a member that signs a statement of each call.
    pub(crate) async fn connect_stating(&self, member: &TestMember) -> Connection {
        let transport = Transport::tls(Arc::new(Member::new(Arc::clone(&member.workload), None)));
        handshake::connect(&transport, &self.address, "test").await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.unwrap().unwrap().unwrap();
        self.control.stop().await;
    }
}
