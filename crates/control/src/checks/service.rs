use std::{pin::Pin, sync::Arc};

use fairmesh_model::{InstanceId, Invalid, Region, ServiceName, Verdict};
use fairmesh_wire::{LogLimiter, v1};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{Checks, election::LeaderGuard};

/// The most judgements in one call.
const MAX_JUDGEMENTS: usize = 1000;

static ELECTED: LogLimiter = LogLimiter::new();

/// The gRPC service `Checker`.
#[derive(Clone, Debug)]
pub(crate) struct CheckerService {
    pub(crate) checks: Checks,
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
        let v1::CampaignRequest { region, name } = request.into_inner();
        let region = region_of(region)?;
        let (send, responses) = mpsc::channel(1);
        let (checks, closing) = (self.checks.clone(), self.closing.clone());
        tokio::spawn(async move {
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
                        () = send_services(&checks, &leader, &send) => {}
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
        if !self.checks.elections.holds(&region, term) {
            return Err(Status::failed_precondition(format!(
                "{term} is not the term of the elected checker of {region}; stand for election with Campaign"
            )));
        }
        self.checks.judge(&region, &findings).await?;
        Ok(Response::new(v1::JudgeResponse {}))
    }
}

/// Sends a leader the services to check, and each change, as long as the call lasts.
async fn send_services(
    checks: &Checks,
    leader: &LeaderGuard,
    send: &mpsc::Sender<Result<v1::CampaignResponse, Status>>,
) {
    let mut services = checks.check_index.services();
    loop {
        let listed = Arc::clone(&services.borrow_and_update());
        let services_now = listed.iter().map(ToString::to_string).collect();
        if send.send(Ok(v1::CampaignResponse { term: leader.term, services: services_now })).await.is_err() {
            return;
        }
        tokio::select! {
            () = send.closed() => return,
            changed = services.changed() => if changed.is_err() { return },
        }
    }
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
