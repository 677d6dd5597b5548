//! `fairmesh traffic hold` and `fairmesh traffic resume`.

use fairmesh_console::{
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{Policy, RecordKey, RecordKind, TrafficMode};
use fairmesh_wire::{
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition},
};
use serde_json::json;

use super::{HoldArgs, not_planned};

/// Stops the planner from changing a service's tables.
pub(super) async fn hold(args: HoldArgs) -> Result<(), Failure> {
    set(args, TrafficMode::Hold, "held: the planner changes no table of it, until 'fairmesh traffic resume'")
        .await
}

/// Lets the planner change tables again.
pub(super) async fn resume(args: HoldArgs) -> Result<(), Failure> {
    set(args, TrafficMode::Active, "planned again").await
}

/// Sets the mode in the policy, unless another writer has changed the policy meanwhile.
async fn set(args: HoldArgs, mode: TrafficMode, word: &str) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let name = &args.service;
    let view = View::read_complete(
        &connection,
        &Scope::Service(name.clone()),
        &[RecordKind::Service, RecordKind::Policy],
    )
    .await?;
    let one = view.service(name)?;
    let mut policy = one.policy.as_ref().map(|stored| stored.value.clone()).unwrap_or_default();
    // A planner from the defaults is copied into the policy, together with the mode.
    policy.traffic = one.effective_policy().traffic;
    let traffic = policy.traffic.as_mut().filter(|traffic| traffic.is_planned());
    let traffic = traffic.ok_or_else(|| not_planned(name))?;
    if traffic.mode == TrafficMode::Shadow {
        return Err(Failure::failed_with(
            format!("the tables of {name} are in shadow mode, so that none are in force"),
            "change 'mode' in its policy by 'fairmesh apply'",
        ));
    }
    let changed = std::mem::replace(&mut traffic.mode, mode) != mode;
    if changed {
        let by_default = one.inherited.value.apply(Policy::default()).traffic;
        policy.traffic = policy.traffic.filter(|own| by_default.as_ref() != Some(own));
        let unchanged = one.policy.as_ref().map(|stored| condition::Kind::Revision(stored.revision));
        let condition = Condition { kind: unchanged.or(Some(condition::Kind::Absent(true))) };
        let op = Op {
            key: RecordKey::Policy(name.clone()).to_string(),
            value: Some(record_encoding::encode(&policy.into())),
            condition: Some(condition),
        };
        connection
            .admin()
            .apply(ApplyRequest { ops: vec![op], dry_run: false, ..Default::default() })
            .await?;
    }
    let state = if changed { "is now" } else { "was already" };
    let item = json!({ "service": name.to_string(), "hold": mode == TrafficMode::Hold, "changed": changed });
    output::print_one(args.output.format(), &item, &format!("{name} {state} {word}\n"))
}
