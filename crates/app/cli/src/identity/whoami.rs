//! The caller's identity as seen by the control plane.

use fairmesh_console::{connect, failure::Failure, output};
use fairmesh_wire::v1::{
    DescribeCallerRequest, DescribeCallerResponse,
    describe_caller_response::{Role, User},
};
use serde_json::{Value, json};

use super::ReadArgs;
use fairmesh_console::output::timestamp;

/// Prints the caller's identity as the control plane sees it.
pub(super) async fn run(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let described = connection.admin().describe_caller(DescribeCallerRequest {}).await;
    let described = described.map_err(|status| Failure::from_status(&status))?.into_inner();
    output::print_one(args.output.format(), &value(&described), &text(&described))
}

fn value(described: &DescribeCallerResponse) -> Value {
    let DescribeCallerResponse { identity, user, roles, admin, open } = described;
    let of_user = |User { issuer, name, groups, expires_at }: &User| json!({ "issuer": issuer, "name": name, "groups": groups, "expires": timestamp(*expires_at) });
    let of_role = |Role { binding, role, tenants, services, subject }: &Role| json!({ "binding": binding, "role": role, "tenants": tenants, "services": services, "subject": subject });
    json!({
        "identity": identity,
        "user": user.as_ref().map(of_user),
        "roles": roles.iter().map(of_role).collect::<Vec<_>>(),
        "admin": admin,
        "open": open,
    })
}

fn text(described: &DescribeCallerResponse) -> String {
    let DescribeCallerResponse { identity, user, roles, admin, open } = described;
    let list =
        |names: &[String], none: &str| if names.is_empty() { none.to_owned() } else { names.join(", ") };
    let mut text = format!("identity  {identity}\n");
    if let Some(User { issuer, name, groups, expires_at }) = user {
        let (groups, end) = (list(groups, "none"), timestamp(*expires_at));
        text += &format!("user      {issuer}#{name}\ngroups    {groups}\nexpires   {end}\n");
    }
    text += match (open, admin) {
        (true, _) => "may       everything: the mesh has no trust domain, so that everyone may\n",
        (false, true) => "may       everything\n",
        (false, false) if roles.is_empty() => {
            "may       what this identity is for; no role binding names you\n"
        }
        (false, false) => "may       what this identity is for, and what its roles give\n",
    };
    if !roles.is_empty() {
        let row = |Role { binding, role, tenants, services, subject }: &Role| {
            let scope = if services.is_empty() { list(tenants, "all") } else { services.join(", ") };
            vec![binding.clone(), role.clone(), scope, subject.clone()]
        };
        let rows: Vec<_> = roles.iter().map(row).collect();
        text += &format!("\n{}", output::table(&["ROLE BINDING", "ROLE", "OF", "SINCE YOU ARE"], &rows));
    }
    text
}
