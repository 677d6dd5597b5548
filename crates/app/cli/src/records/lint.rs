//! `fairmesh lint`: checks YAML files without a control plane.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Files, Format, OutputArgs},
    failure::Failure,
    output,
};
use fairmesh_model::counted;
use serde_json::json;

use super::apply::warnings;
use crate::manifests::{self, Loaded};

/// Exit code for warnings.
const EXIT_WARNED: u8 = 3;

/// Arguments of `fairmesh lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Reads the files as `apply` does, and prints its warnings, also of the files without an error beside others. Only the files
/// are known.
pub fn run(args: LintArgs) -> Result<ExitCode, Failure> {
    let Loaded { documents, refused } = manifests::load_valid(&args.files)?;
    let resources: Vec<_> = documents.iter().map(|one| &one.resource).collect();
    let mut warnings = warnings::warnings(None, &resources);
    if refused.is_some() {
        // A file with an error may declare what the others name.
        warnings.retain(|warning| !warning.contains(warnings::UNDECLARED_IN_FILES));
    }
    match args.output_args.format() {
        Format::Table => {
            let lines: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
            // Files with an error are not counted, so that a sum would say that they have no documents.
            let end = match refused.is_some() {
                true => String::new(),
                false => {
                    format!(
                        "{}, {}\n",
                        counted(documents.len(), "document"),
                        counted(warnings.len(), "warning")
                    )
                }
            };
            output::write(&(lines + &end))?;
        }
        _ => output::write(&format!("{}\n", json!({ "documents": documents.len(), "warnings": warnings })))?,
    }
    if let Some(failure) = refused {
        return Err(failure);
    }
    Ok(if warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WARNED) })
}
