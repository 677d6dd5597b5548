//! The placement of one service, as operators change it: `gateway move` and `gateway throttle`.

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    view_reader::{At, ReadView, Scope, View},
};
use fairmesh_identity::{Clock as _, SystemClock};
use fairmesh_model::{Placement, Record, RecordKey, RecordKind, ServiceName, Zone};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition::Kind},
};

/// Arguments of commands that change a placement.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// The service, TENANT/SERVICE.
    pub(super) service: ServiceName,
    /// Why, for the record and the log of writes.
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
    /// Check and print only.
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// All placements, and that of the service in question.
pub(super) struct Placements {
    pub(super) connection: Connection,
    /// The services of all tenants: placements of others bound where a service may be.
    pub(super) view: View,
    /// Its home zone: as its record asks, or as it is placed where that record is deleted.
    pub(super) home: Zone,
    /// Its placement, if it has one.
    pub(super) present: Option<At<Placement>>,
}

impl ChangeArgs {
    /// Reads the placements.
    ///
    /// # Errors
    /// The service does not use a gateway with backends, or the control plane does not answer.
    pub(super) async fn read(&self) -> Result<Placements, Failure> {
        let connection = connect::connect(&self.target).await?;
        let kinds = [RecordKind::GatewayService, RecordKind::Placement];
        let view = View::read_complete(&connection, &Scope::All, &kinds).await?;
        let of_service = view.services.get(&self.service);
        let present = of_service.and_then(|one| one.placement.clone());
        let asked = of_service.and_then(|one| one.gateway.as_ref()).map(|used| &used.value.home_zone);
        // What an operator decided outlives the record of the service, and has to be ended.
        let home = asked.or_else(|| present.as_ref().map(|placed| &placed.value.home_zone)).cloned();
        let home = home.ok_or_else(|| {
            let hint = "apply a 'kind: GatewayService' for it first; until then, every replica serves it";
            Failure::refused(format!("{} uses no gateway with backends", self.service), hint)
        })?;
        Ok(Placements { connection, view, home, present })
    }

    /// The reason, as records keep it.
    pub(super) fn reason(&self) -> String {
        self.reason.clone()
    }

    /// Writes the placement of the service, unless another change comes between.
    pub(super) async fn write(&self, placements: &Placements, placement: Placement) -> Result<(), Failure> {
        placement.validate()?;
        let kind = match &placements.present {
            Some(At { revision, .. }) => Kind::Revision(*revision),
            None => Kind::Absent(true),
        };
        let op = Op {
            key: RecordKey::Placement(self.service.clone()).to_string(),
            value: Some(record_encoding::encode(&Record::Placement(placement))),
            condition: Some(Condition { kind: Some(kind) }),
        };
        let request = ApplyRequest { ops: vec![op], dry_run: self.dry_run, message: self.reason() };
        placements.connection.admin().apply(request).await?;
        Ok(())
    }

    /// The verb of what the command does, or would do.
    pub(super) fn verb(&self) -> &'static str {
        if self.dry_run { "would be" } else { "is" }
    }
}

impl Placements {
    /// The placement in force.
    ///
    /// # Errors
    /// The service is placed on no backends.
    pub(super) fn placed(&self, service: &ServiceName) -> Result<Placement, Failure> {
        self.present.as_ref().map(|present| present.value.clone()).ok_or_else(|| {
            let hint = "`fairmesh gateway status` says what is missing";
            Failure::refused(format!("{service} is placed on no backends"), hint)
        })
    }
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX)
}
