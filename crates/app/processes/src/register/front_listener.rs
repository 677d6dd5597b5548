//! The address that callers reach: this command in front of the program, or the program itself.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_console::failure::Failure;
use fairmesh_proxy::ProgramFront;
use fairmesh_server::{ConnectionAuthorizer, RegistryClient, ServerTransport, transport_of_agent};
use tokio::time::timeout;

use super::{
    admin_pages::RegisterPages,
    arguments::ValidArguments,
    print_status,
    tls_terminator::{Forwarding, Terminator},
};

/// Time for which an endpoint waits for its policy before it is registered.
const POLICY_TIMEOUT: Duration = Duration::from_secs(2);

/// Parameters for accepting connections, and the listener in front of the program.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) opened: ServerTransport,
    pub(super) pages: Arc<RegisterPages>,
    terminator: Option<Terminator>,
    /// Whether a message was printed that the agent does not yet know whether there is a trust domain.
    said: bool,
}

impl Front {
    /// Opens the listener if it is already known that one is needed.
    pub(super) async fn open(
        plan: &mut ValidArguments,
        opened: ServerTransport,
        pages: Arc<RegisterPages>,
    ) -> Result<Self, Failure> {
        let mut front = Self { opened, pages, terminator: None, said: false };
        if plan.plaintext {
            // The command line asks for plaintext. The control plane decides whether it is permitted.
            front.opened.undecided = None;
        }
        if !front.is_undecided(plan) {
            front.bind(plan).await?;
        }
        Ok(front)
    }

    /// Whether the need for a listener depends on the trust domain, but the agent does not yet know whether there is
    /// one.
    fn is_undecided(&self, plan: &ValidArguments) -> bool {
        self.opened.undecided.is_some() && plan.program.is_none()
    }

    /// Asks the agent again whether the mesh has a trust domain, if this is still unknown. Returns whether it is now
    /// known, so that the program can be registered.
    pub(super) async fn decide(&mut self, plan: &mut ValidArguments) -> Result<bool, Failure> {
        if !self.is_undecided(plan) {
            return Ok(true);
        }
        self.opened = transport_of_agent(&plan.addresses, &plan.registration).await;
        if self.is_undecided(plan) {
            if !std::mem::replace(&mut self.said, true) {
                print_status(
                    "waiting for the agent to say whether the mesh has a trust domain; is 'fairmesh agent' up?",
                );
            }
            return Ok(false);
        }
        self.bind(plan).await?;
        Ok(true)
    }

    /// Opens a listener in front of the program, unless callers reach the program directly.
    async fn bind(&mut self, plan: &mut ValidArguments) -> Result<(), Failure> {
        let transport = &self.opened.transport;
        let (address, program) = match plan.program {
            Some(program) => (plan.registration.address, program),
            None if plan.plaintext || !transport.is_tls() => return Ok(()),
            // Any port: callers learn it from the record.
            None => (SocketAddr::new(plan.registration.address.ip(), 0), plan.registration.address),
        };
        let (service, transport) = (plan.registration.service.clone(), transport.clone());
        let software = format!("register {service}");
        let registry = RegistryClient::new(plan.addresses.clone(), software, transport.clone());
        let authorizer = ConnectionAuthorizer::follow(service, &registry);
        let authorizer = if plan.tcp { authorizer } else { authorizer.parsing_requests() };
        // Wait for the policy: callers that find the endpoint before it knows its authorization policy would be
        // refused.
        let _ = timeout(POLICY_TIMEOUT, authorizer.ready()).await;
        plan.registration.mtls = transport.is_tls();
        let forwarding = self.forwarding(plan, program, &authorizer)?;
        let terminator = Terminator::start(address, (transport, authorizer), forwarding).await?;
        (plan.registration.address, plan.program) = (terminator.address(), Some(program));
        self.terminator = Some(terminator);
        Ok(())
    }

    /// Mode of forwarding connections to the program.
    fn forwarding(
        &self,
        plan: &ValidArguments,
        program: SocketAddr,
        authorizer: &ConnectionAuthorizer,
    ) -> Result<Forwarding, Failure> {
        if plan.tcp {
            return Ok(Forwarding::Bytes(program));
        }
        let (service, transport) = (plan.registration.service.clone(), self.opened.transport.clone());
        let observer = Arc::clone(&self.pages.observer);
        let front = ProgramFront::start((service, program), (authorizer.clone(), transport), observer);
        let front = front.map_err(|error| Failure::refused(error.problem, error.hint))?;
        // The program has one listener in front of it.
        let _ = self.pages.front.set(front.clone());
        Ok(Forwarding::Requests(front, program))
    }

    /// The authorizer, if this command listens in front of the program. It decides who may call, and counts requests.
    pub(super) fn authorizer(&self) -> Option<&ConnectionAuthorizer> {
        self.terminator.as_ref().map(Terminator::authorizer)
    }

    /// Closes the listener, and stops following the policy.
    pub(super) async fn close(&mut self) {
        if let Some(terminator) = self.terminator.take() {
            terminator.close().await;
        }
        self.opened.transport.close().await;
    }
}
