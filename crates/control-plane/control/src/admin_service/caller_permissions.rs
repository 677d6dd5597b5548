//! Describes the permissions of a caller.

use fairmesh_rib::access::{AccessControl, BoundRole, Caller, User};
use fairmesh_wire::v1::{
    DescribeCallerResponse,
    describe_caller_response::{Role, User as DescribedUser},
};

/// The identity and permissions of a caller.
pub(super) fn describe(access: &AccessControl, caller: &Caller) -> DescribeCallerResponse {
    DescribeCallerResponse {
        identity: caller.identity.to_string(),
        user: caller.user.as_deref().map(described_user),
        roles: access.roles(caller).into_iter().map(described_role).collect(),
        admin: access.grants(caller).admin,
        open: !access.is_strict(),
    }
}

fn described_user(user: &User) -> DescribedUser {
    DescribedUser {
        issuer: user.issuer.to_string(),
        name: user.name.clone(),
        groups: user.groups.clone(),
        expires_at: user.expires_at.as_secs(),
    }
}

fn described_role(BoundRole { name, binding, subject }: BoundRole) -> Role {
    Role {
        binding: name.to_string(),
        role: binding.role.as_str().to_owned(),
        tenants: binding.tenants.iter().map(ToString::to_string).collect(),
        services: binding.services.iter().map(ToString::to_string).collect(),
        subject: subject.to_string(),
    }
}
