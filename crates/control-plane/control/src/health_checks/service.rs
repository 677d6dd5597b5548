use std::{pin::Pin, sync::Arc, time::Duration};

use fairmesh_model::{InstanceId, Invalid, Label, MAX_MEASURED_REGIONS, Region, ServiceName, Verdict};
use fairmesh_wire::{LogLimiter, agent_of, v1};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    Checks,
    distance_targets::{DistanceTarget, DistanceTargets},
    election::{LeaderGuard, MAX_CANDIDATES},
};
use crate::zone_probes::ZoneProbes;

/// Maximum number of judgements in one call.
const MAX_JUDGEMENTS: usize = 1000;

static ELECTED: LogLimiter = LogLimiter::new();

/// The gRPC service `Checker`.
#[derive(Clone, Debug)]
pub(crate) struct CheckerService {
    pub(crate) checks: Checks,
    pub(crate) probes: ZoneProbes,
    pub(crate) closing: CancellationToken,
}

/// The verdict of a checker on one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) service: ServiceName,
    pub(super) instance: InstanceId,
    pub(super) verdict: Verdict,
}

#[tonic::async_trait]
impl v1::checker_server::Checker for CheckerService {
    type CampaignStream = Pin<Box<dyn Stream<Item = Result<v1::CampaignResponse, Status>> + Send>>;

    async fn campaign(
        &self,
        request: Request<v1::CampaignRequest>,
    ) -> Result<Response<Self::CampaignStream>, Status> {
        let agent = agent_of(&request).cloned();
        let v1::CampaignRequest { region, name } = request.into_inner();
        let region = region_of(region)?;
        if agent.is_none() && self.checks.has_trust_domain() {
            return Err(Status::failed_precondition(format!(
                "{name} has not shown a certificate, without which servers refuse its probes; stand for election once the agent \
                 has joined"
            )));
        }
        let place = self.checks.elections.admit().ok_or_else(|| {
            Status::resource_exhausted(format!(
                "{MAX_CANDIDATES} checkers stand for election at this control plane, its limit; try again later"
            ))
        })?;
        let (send, responses) = mpsc::channel(1);
        let (checks, closing) = (self.checks.clone(), self.closing.clone());
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                () = closing.cancelled() => {}
                () = send.closed() => {}
                leader = checks.elections.clone().campaign(region.clone()) => {
                    let logged = ELECTED.next();
                    if let Some(left_out) = logged {
                        tracing::info!(%region, checker = %name, left_out, "checker elected");
                    }
                    tokio::select! {
                        () = closing.cancelled() => {}
                        () = send.closed() => {}
                        () = lead(&checks, &region, (&leader, agent.as_ref()), &send) => {}
                    }
                    if logged.is_some() {
                        tracing::info!(%region, checker = %name, "checker is no longer elected");
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn judge(&self, request: Request<v1::JudgeRequest>) -> Result<Response<v1::JudgeResponse>, Status> {
        let v1::JudgeRequest { region, term, judgements } = request.into_inner();
        let region = region_of(region)?;
        if judgements.len() > MAX_JUDGEMENTS {
            return Err(Status::invalid_argument(format!(
                "send at most {MAX_JUDGEMENTS} judgements in one call"
            )));
        }
        let findings = judgements.into_iter().enumerate();
        let findings =
            findings.map(|(i, one)| finding(one).map_err(|e| e.within(format!("judgements[{i}]"))));
        let findings = findings.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        self.require_leader(&region, term)?;
        self.checks.judge(&region, &findings).await?;
        Ok(Response::new(v1::JudgeResponse {}))
    }

    async fn report_distances(
        &self,
        request: Request<v1::ReportDistancesRequest>,
    ) -> Result<Response<v1::ReportDistancesResponse>, Status> {
        let v1::ReportDistancesRequest { region, term, distances } = request.into_inner();
        let region = region_of(region)?;
        if distances.len() > MAX_MEASURED_REGIONS {
            let problem = format!("send at most {MAX_MEASURED_REGIONS} distances in one call");
            return Err(Status::invalid_argument(problem));
        }
        let distance = |one: v1::ReportedDistance| {
            Ok::<_, Status>((region_of(one.region)?, Duration::from_micros(one.rtt_us)))
        };
        let distances = distances.into_iter().map(distance).collect::<Result<Vec<_>, _>>()?;
        self.require_leader(&region, term)?;
        self.checks.report_distances(&region, &distances).await?;
        Ok(Response::new(v1::ReportDistancesResponse {}))
    }

    async fn report_probes(
        &self,
        request: Request<v1::ReportProbesRequest>,
    ) -> Result<Response<v1::ReportProbesResponse>, Status> {
        self.probes.exchange(request.into_inner()).map(Response::new)
    }
}

impl CheckerService {
    /// Refuses reports from a checker that is no longer elected.
    fn require_leader(&self, region: &Region, term: u64) -> Result<(), Status> {
        if self.checks.elections.holds(region, term) {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "{term} is not the term of the elected checker of {region}; stand for election with Campaign"
        )))
    }
}

/// Records the leader. Then sends the leader its lists for as long as the call lasts.
async fn lead(
    checks: &Checks,
    region: &Region,
    (leader, agent): (&LeaderGuard, Option<&Label>),
    send: &mpsc::Sender<Result<v1::CampaignResponse, Status>>,
) {
    checks.record_checker(region, agent).await;
    send_lists(checks, region, leader, send).await;
}

/// Sends a leader the services to check and the targets in other regions, and later changes of both, for as long as
/// the call lasts.
async fn send_lists(
    checks: &Checks,
    region: &Region,
    leader: &LeaderGuard,
    send: &mpsc::Sender<Result<v1::CampaignResponse, Status>>,
) {
    let (mut services, mut targets) = (checks.check_index.services(), checks.targets.subscribe());
    loop {
        let listed = Arc::clone(&services.borrow_and_update());
        let response = v1::CampaignResponse {
            term: leader.term,
            services: listed.iter().map(ToString::to_string).collect(),
            targets: targets_from(region, &targets.borrow_and_update()),
        };
        if send.send(Ok(response)).await.is_err() {
            return;
        }
        tokio::select! {
            () = send.closed() => return,
            changed = services.changed() => if changed.is_err() { return },
            changed = targets.changed() => if changed.is_err() { return },
        }
    }
}

/// Targets for a checker in region `own`: the targets of all other regions.
fn targets_from(own: &Region, targets: &DistanceTargets) -> Vec<v1::DistanceTarget> {
    let others = targets.iter().filter(|(region, _)| *region != own);
    let message = |region: &Region, target: &DistanceTarget| v1::DistanceTarget {
        region: region.to_string(),
        address: target.address.to_string(),
        http2: target.http2,
        service: target.service.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    others.flat_map(|(region, targets)| targets.iter().map(move |target| message(region, target))).collect()
}

fn region_of(name: String) -> Result<Region, Status> {
    Region::new(name).map_err(|e| refused(e.within("region")))
}

fn finding(judgement: v1::Judgement) -> Result<Finding, Invalid> {
    let v1::Judgement { service, instance, verdict } = judgement;
    let verdict = verdict.ok_or_else(|| Invalid::new("verdict", "is missing", "send it"))?;
    Ok(Finding {
        service: ServiceName::new(service).map_err(|e| e.within("service"))?,
        instance: InstanceId::new(instance).map_err(|e| e.within("instance"))?,
        verdict: verdict.try_into().map_err(|e: Invalid| e.within("verdict"))?,
    })
}

fn refused(invalid: Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}
