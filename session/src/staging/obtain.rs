//! Stagings of a run: existing ones, and those that are written first.

use std::path::PathBuf;

use weight_store::Lookup;

use super::outdated;
use super::staged_weights::StagedWeights;
use super::write::{Staging, stage};
use crate::interrupt::Interrupt;

const GIB: f64 = (1u64 << 30) as f64;

/// Returns the staging in each of `directories`, in their order. Missing ones are written after a
/// message about the required space and time.
///
/// # Errors
/// A staging that is damaged, has the name of another one, or has experts in the layout of an
/// earlier version, or one that cannot be written.
pub(crate) fn obtain_stagings(
    weights: StagedWeights<'_>,
    directories: &[PathBuf],
    quiet: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Staging>> {
    let identity = weights.identity()?;
    let mut existing: Vec<Option<Staging>> = Vec::new();
    for directory in directories {
        existing.push(match weight_store::StagedCopy::lookup(directory, &identity)? {
            Lookup::Complete(staged) => Some(Staging { directory: directory.clone(), staged }),
            Lookup::Partial(_) | Lookup::Missing => {
                outdated::refuse(weights, directory)?;
                None
            }
        });
    }
    let missing = existing.iter().zip(directories).filter(|(staging, _)| staging.is_none());
    let missing: Vec<PathBuf> = missing.map(|(_, directory)| directory.clone()).collect();
    if missing.is_empty() {
        return Ok(existing.into_iter().flatten().collect());
    }
    if !quiet {
        let names: Vec<String> =
            missing.iter().map(|directory| directory.display().to_string()).collect();
        let each = weight_store::size_bytes(&weights.blobs()) as f64 / GIB;
        eprintln!(
            "{} ({}) is not staged in {}: staging it takes {each:.2} GiB on each drive, once, and \
             about as long as writing this amount.",
            identity.model,
            identity.form,
            names.join(", ")
        );
    }
    let mut written = stage(weights, &missing, quiet, interrupt)?.into_iter();
    Ok(existing.into_iter().filter_map(|staging| staging.or_else(|| written.next())).collect())
}

#[cfg(test)]
mod tests {
    use program::formats::WeightFormats;

    use super::*;
    use crate::model::ModelHandle;
    use crate::request::ModelChoice;

    #[test]
    fn an_earlier_layout_of_experts_is_refused_and_rewritten() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3_moe");
        let choice = ModelChoice {
            name: fixture.to_owned(),
            revision: None,
            dummy_weights: false,
            layers: None,
            positions: None,
        };
        let model = ModelHandle::open(&choice, 0).expect("a model");
        let formats = WeightFormats::plain(&model.config);
        let dtype = model::config::Dtype::Bf16;
        let weights = StagedWeights { model: &model, dtype, formats: &formats };
        let folder = tempfile::tempdir().expect("a folder");
        let directory = [folder.path().to_owned()];
        let outdated = weights.outdated_identity().expect("weights").expect("it has experts");
        assert_ne!(outdated.name, weights.identity().expect("weights").name);
        let old = directory[0].join(&outdated.name);
        std::fs::create_dir(&old).expect("a folder");
        std::fs::write(old.join("weights.bin"), [1]).expect("writable");

        let interrupt = Interrupt::default();
        let obtain = || obtain_stagings(weights, &directory, true, &interrupt);
        let refused = obtain().expect_err("the layout of an earlier version").to_string();
        assert!(refused.contains("coordinator stage --model"), "{refused}");
        assert!(old.exists());
        let written = stage(weights, &directory, true, &interrupt).expect("it is rewritten");
        assert!(!old.exists());
        let found = obtain().expect("it is there");
        assert_eq!(found[0].staged.path(), written[0].staged.path());
        // One blob has the experts of a layer.
        let names: Vec<String> = weights.blobs().into_iter().map(|blob| blob.name).collect();
        assert!(names.contains(&"weights.layer0.experts".to_owned()), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("expert_gate")), "{names:?}");
    }
}
