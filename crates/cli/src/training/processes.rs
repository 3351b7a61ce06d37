//! The processes of a run: one, or those that `mpirun` started together.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use train::Exchange;

use crate::environment;

/// What connects this process with the others of its run, if there are any.
pub(crate) type Others = Option<Arc<dyn Exchange>>;

/// Whether this process does what one alone must: writing, and saying what happens.
pub(crate) fn leads(others: &Others) -> bool {
    others.as_ref().is_none_or(|exchange| exchange.rank() == 0)
}

/// How many processes there are.
pub(crate) fn count(others: &Others) -> usize {
    others.as_ref().map_or(1, |exchange| exchange.ranks())
}

/// Waits for all processes.
///
/// # Errors
/// When one is gone.
pub(crate) fn meet(others: &Others) -> Result<()> {
    Ok(others.as_ref().map_or(Ok(()), |exchange| exchange.sum(&mut [0.0]))?)
}

/// Does `work` as one of the processes that were started together. Where it fails here, all end.
///
/// # Errors
/// Those of `work`, and when there are others and no way to them.
pub(crate) fn together(work: impl FnOnce(&Others) -> Result<ExitCode>) -> Result<ExitCode> {
    match environment::processes() {
        0 | 1 => work(&None),
        count => connected(count, work),
    }
}

#[cfg(feature = "mpi")]
fn connected(count: usize, work: impl FnOnce(&Others) -> Result<ExitCode>) -> Result<ExitCode> {
    let mpi = Arc::new(train::Mpi::connect()?);
    let ranks = mpi.ranks();
    let done = match ranks == count {
        true => work(&Some(mpi.clone())),
        // Each would think that it is alone, and all would write the same files.
        false => Err(anyhow::anyhow!(
            "{count} processes were started, MPI connects {ranks}: is mpirun of another MPI?"
        )),
    };
    match done {
        Ok(code) => {
            mpi.close();
            Ok(code)
        }
        Err(error) => {
            let error = error.context(format!("process {} of {ranks}", mpi.rank()));
            crate::failure::show(&error);
            crate::scratch::remove();
            mpi.abort()
        }
    }
}

#[cfg(not(feature = "mpi"))]
fn connected(count: usize, _: impl FnOnce(&Others) -> Result<ExitCode>) -> Result<ExitCode> {
    anyhow::bail!(
        "is one of {count} processes by the environment, and this rigel is built without MPI; cargo's feature mpi has it"
    )
}
