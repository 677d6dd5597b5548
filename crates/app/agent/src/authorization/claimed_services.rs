use std::collections::BTreeSet;

use fairmesh_model::{Region, ServiceName};
use fairmesh_rib::access::Need;
use tonic::Status;

/// Maximum number of services that one call acts for. No program has more identities than this.
const MAX_SERVICES: usize = 64;

/// Statements that the agent would make in its own name if it forwarded a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Services that the call acts for.
    pub(super) acts_for: BTreeSet<ServiceName>,
    /// Services that the program calls, claims limits of, or reports calls to.
    pub(super) calls: BTreeSet<ServiceName>,
    /// Whether the call is a report, for which the program needs an identity, whatever it contains.
    pub(super) calls_any: bool,
    /// Regions that the call reports about.
    pub(super) regions: BTreeSet<Region>,
}

impl Asked {
    /// Combines the needs of a call.
    ///
    /// # Errors
    /// When the call names more services than an agent states for any program.
    pub(super) fn of(needs: &[Need]) -> Result<Self, Status> {
        let mut asked = Self::default();
        for need in needs {
            match need {
                Need::Serve(service, _) | Need::ServeAny(service) | Need::Operate(service) => {
                    asked.acts_for.insert(service.clone());
                }
                Need::Claim(service) | Need::CallFrom(service) => {
                    asked.calls.insert(service.clone());
                }
                Need::Report => asked.calls_any = true,
                Need::ReportFor(region) => {
                    asked.regions.insert(region.clone());
                    asked.calls_any = true;
                }
                Need::ServeAsOperator(..) => return Err(no_operator()),
                Need::View(_)
                | Need::ViewHistory(_)
                | Need::ViewTenant(_)
                | Need::ViewAll
                | Need::Write(_)
                | Need::Register(..)
                | Need::Check(_)
                | Need::ReportGateway
                | Need::Admin => {
                    return Err(Status::permission_denied("an agent passes this on for no program"));
                }
            }
        }
        match asked.acts_for.len() > MAX_SERVICES {
            true => Err(Status::invalid_argument(format!(
                "acts for {} services; act for at most {MAX_SERVICES} in one call",
                asked.acts_for.len()
            ))),
            false => Ok(asked),
        }
    }
}

impl Asked {
    /// Refuses reports about regions other than the agent's. The agent adds reports up, and a control plane would
    /// refuse the whole sum.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check_region(&self, own: &Region) -> Result<(), Status> {
        match self.regions.iter().find(|region| *region != own) {
            None => Ok(()),
            Some(other) => Err(Status::permission_denied(format!(
                "this agent reports of the region {own}, and takes no report of {other} from programs of other users"
            ))),
        }
    }
}

fn no_operator() -> Status {
    Status::permission_denied(
        "an agent makes no call of an operator in its own name: run `fairmesh drain` as the user of the agent or root, whose \
         identity needs the role operator (see `fairmesh identity whoami`), or give the control plane with --control",
    )
}

#[cfg(test)]
mod tests {
    use fairmesh_model::InstanceId;

    use super::*;

    fn service(text: &str) -> ServiceName {
        ServiceName::new(text).unwrap()
    }

    #[test]
    fn requested_access_collects_acting_and_called_services() {
        let cart = || service("shop/cart");
        let asked = Asked::of(&[
            Need::Serve(cart(), InstanceId::new("a").unwrap()),
            Need::ServeAny(cart()),
            Need::CallFrom(service("bank/rates")),
            Need::ReportFor(Region::new("eu").unwrap()),
        ]);
        let asked = asked.unwrap();
        let [eu, us] = ["eu", "us"].map(|region| Region::new(region).unwrap());
        assert!(asked.calls_any, "reports are for programs with an identity");
        assert!(asked.check_region(&eu).is_ok() && asked.check_region(&us).is_err());
        assert_eq!((asked.acts_for, asked.calls), ([cart()].into(), [service("bank/rates")].into()));
        for need in
            [Need::ServeAsOperator(cart(), InstanceId::new("a").unwrap()), Need::Admin, Need::View(cart())]
        {
            assert!(Asked::of(&[need]).is_err());
        }
        let many: Vec<_> = (0..65).map(|i| Need::ServeAny(service(&format!("shop/s{i}")))).collect();
        assert!(Asked::of(&many[..64]).is_ok() && Asked::of(&many).is_err());
    }
}
