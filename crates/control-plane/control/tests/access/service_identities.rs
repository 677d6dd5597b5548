//! Tests of services whose endpoints prove another id.

use fairmesh_model::{Protocol, Record, Service, ServiceKind};
use fairmesh_wire::{record_encoding, v1};
use tonic::Code;

use super::{
    members::{own, start_strict},
    roles::apply,
    support::{put, service_key},
};

fn service(identity: &str) -> Vec<u8> {
    let service = Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http1,
        virtual_address: None,
        identity: Some(identity.parse().unwrap()),
    };
    record_encoding::encode(&Record::Service(service)).to_vec()
}

#[tokio::test]
async fn service_cannot_name_id_of_own_trust_domain() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let operator = own(&control).await;
    for id in ["spiffe://prod/blue/vault", "spiffe://prod/red/x", "spiffe://prod/fairmesh/control/one"] {
        let ops = vec![put(service_key("red/x"), service(id))];
        let write = operator.rib().write(v1::WriteRequest { ops: ops.clone() }).await.map(drop);
        let dry = v1::ApplyRequest { ops: ops.clone(), dry_run: true, ..Default::default() };
        let dry = operator.admin().apply(dry).await.map(drop);
        for (way, result) in
            ["apply", "write", "dry run"].into_iter().zip([apply(&operator, ops).await, write, dry])
        {
            let refused = result.expect_err(way);
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains("own trust domain"), "{refused}");
        }
    }
    let ops = vec![put(service_key("red/x"), service("spiffe://partner/red/x"))];
    apply(&operator, ops.clone()).await.unwrap();
    operator.rib().write(v1::WriteRequest { ops }).await.unwrap();
    control.stop().await;
}
