//! Role bindings.

use fairmesh_model::{
    Invalid, Label, ServiceName, Tenant,
    access::{AccessRole, RoleBinding, Subject, UidRange, WorkloadBounds},
};

use crate::v1;

impl From<RoleBinding> for v1::RoleBinding {
    fn from(binding: RoleBinding) -> Self {
        use v1::role_binding::Role;
        let RoleBinding { role, tenants, services, subjects, workloads } = binding;
        let role = match role {
            AccessRole::Viewer => Role::Viewer,
            AccessRole::Operator => Role::Operator,
            AccessRole::Registrar => Role::Registrar,
            AccessRole::Authorizer => Role::Authorizer,
            AccessRole::Admin => Role::Admin,
        };
        Self {
            role: role.into(),
            tenants: tenants.into_iter().map(String::from).collect(),
            services: services.iter().map(ToString::to_string).collect(),
            subjects: subjects.iter().map(ToString::to_string).collect(),
            workloads: workloads.map(Into::into),
        }
    }
}

impl TryFrom<v1::RoleBinding> for RoleBinding {
    type Error = Invalid;

    fn try_from(message: v1::RoleBinding) -> Result<Self, Invalid> {
        use v1::role_binding::Role;
        let role = match message.role() {
            Role::Viewer => AccessRole::Viewer,
            Role::Operator => AccessRole::Operator,
            Role::Registrar => AccessRole::Registrar,
            Role::Authorizer => AccessRole::Authorizer,
            Role::Admin => AccessRole::Admin,
            // A role of a newer release grants nothing here, so reading it must fail.
            Role::Unspecified => {
                let problem = format!("{} is no role", message.role);
                return Err(Invalid::new(
                    "role",
                    problem,
                    "write viewer, operator, authorizer, registrar or admin",
                ));
            }
        };
        let each = |field: &'static str| move |e: Invalid| e.within(field);
        let tenants: Result<Vec<_>, _> = message.tenants.into_iter().map(Tenant::try_from).collect();
        let services: Result<Vec<_>, _> = message.services.into_iter().map(ServiceName::new).collect();
        let subjects: Result<Vec<_>, _> = message.subjects.iter().map(|text| Subject::parse(text)).collect();
        let binding = Self {
            role,
            tenants: tenants.map_err(each("tenants"))?,
            services: services.map_err(each("services"))?,
            subjects: subjects.map_err(each("subjects"))?,
            workloads: message
                .workloads
                .map(WorkloadBounds::try_from)
                .transpose()
                .map_err(each("workloads"))?,
        };
        binding.validate()?;
        Ok(binding)
    }
}

impl From<WorkloadBounds> for v1::WorkloadBounds {
    fn from(bounds: WorkloadBounds) -> Self {
        let uids = bounds.uids.iter().map(|range| v1::UidRange { first: range.first, last: range.last });
        Self {
            uids: uids.collect(),
            cgroups: bounds.cgroups,
            agents: bounds.agents.into_iter().map(String::from).collect(),
        }
    }
}

impl TryFrom<v1::WorkloadBounds> for WorkloadBounds {
    type Error = Invalid;

    /// A range whose last user is below its first contains no user.
    fn try_from(message: v1::WorkloadBounds) -> Result<Self, Invalid> {
        let uids = message.uids.iter().map(|range| UidRange { first: range.first, last: range.last });
        let agents: Result<Vec<_>, _> = message.agents.into_iter().map(Label::try_from).collect();
        Ok(Self {
            uids: uids.collect(),
            cgroups: message.cgroups,
            agents: agents.map_err(|e| e.within("agents"))?,
        })
    }
}
