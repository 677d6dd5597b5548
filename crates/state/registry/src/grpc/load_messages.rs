//! Converts loads and plans to protobuf messages.

use std::collections::BTreeSet;

use fairmesh_model::{Invalid, Role, ShardId};
use fairmesh_wire::v1;

use crate::{LoadReport, MovePlan, PlanOptions, ServerLoad, ShardWork};

pub(super) fn report(message: v1::ReportShardLoadRequest) -> Result<LoadReport, Invalid> {
    let shards = message.shards.into_iter().enumerate().map(|(i, work)| {
        let role = Role::try_from(work.role).map_err(|e| e.within(format!("shards[{i}].role")))?;
        Ok(ShardWork { shard: ShardId(work.shard), role, busy_us: work.busy_us })
    });
    Ok(LoadReport {
        sequence: message.sequence,
        period_ms: message.period_ms,
        shards: shards.collect::<Result<_, Invalid>>()?,
        rest_us: message.rest_us,
        calls: message.calls,
    })
}

pub(super) fn server(load: ServerLoad) -> v1::ServerLoad {
    let age_ms = load.age.map(|age| u32::try_from(age.as_millis()).unwrap_or(u32::MAX));
    let work = load.work();
    let shard = |(shard, role, work): (ShardId, Role, u64)| v1::server_load::Shard {
        shard: shard.0,
        role: role.into(),
        work,
    };
    v1::ServerLoad {
        instance: load.instance.into(),
        region: load.region.into(),
        zone: load.zone.map(Into::into).unwrap_or_default(),
        power: load.power,
        serves: load.serves,
        age_ms,
        calls: load.calls,
        work,
        shards: load.shards.into_iter().map(shard).collect(),
        rest: load.rest,
    }
}

pub(super) fn options(message: v1::ProposeMovesRequest) -> Result<PlanOptions, Invalid> {
    let roles = message.replicate.into_iter().map(Role::try_from).collect::<Result<BTreeSet<_>, _>>();
    PlanOptions::new(message.threshold, message.max_moves, roles.map_err(|e| e.within("replicate"))?)
}

pub(super) fn plan(plan: MovePlan) -> v1::ProposeMovesResponse {
    let servers = plan.servers.into_iter().map(|server| v1::propose_moves_response::Server {
        instance: server.instance.into(),
        region: server.region.into(),
        before: server.before,
        after: server.after,
        fair: server.fair,
    });
    v1::ProposeMovesResponse {
        moves: plan.moves.into_iter().map(Into::into).collect(),
        servers: servers.collect(),
        notes: plan.notes.iter().map(ToString::to_string).collect(),
    }
}
