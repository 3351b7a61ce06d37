//! Processes that an MPI launcher started, connected by MPI.

use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};

use crate::{Exchange, Result, TrainError};

/// The connection of this process with those that were started together with it.
///
/// One thread initialises MPI, makes all calls and finalises it, which is the level `MPI_THREAD_FUNNELED`. It blocks
/// in one all-reduce after another while the others compute. Errors of MPI itself end all processes.
///
/// One that is neither closed nor aborted is aborted when it is dropped.
pub struct Mpi {
    rank: usize,
    ranks: usize,
    jobs: Sender<Job>,
    buckets: Mutex<Receiver<Vec<f32>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Job {
    Bucket(Vec<f32>),
    Numbers(Vec<f64>, Sender<Vec<f64>>),
    Close,
    Abort,
}

impl Mpi {
    /// Connects this process; once in its life.
    ///
    /// # Errors
    /// When it was connected before, or the MPI library knows no threads.
    pub fn connect() -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let (added, buckets) = mpsc::channel();
        let (connected, place) = mpsc::channel();
        let work = move || {
            let Some((universe, level)) = mpi::initialize_with_threading(Threading::Funneled)
            else {
                let _ = connected.send(Err("MPI is initialised already".to_owned()));
                return;
            };
            let world = universe.world();
            let threads = match level {
                Threading::Single => Err("the MPI library knows no threads".to_owned()),
                _ => Ok((world.rank() as usize, world.size() as usize)),
            };
            if connected.send(threads).is_ok() {
                serve(&world, &queue, &added);
            }
        };
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(work);
        let thread = thread.map_err(|e| lost(&e.to_string()))?;
        let place = place.recv().map_err(|_| lost("MPI cannot be initialised"))?;
        let (rank, ranks) = place.map_err(|why| lost(&why))?;
        let (buckets, thread) = (Mutex::new(buckets), Mutex::new(Some(thread)));
        Ok(Mpi { rank, ranks, jobs, buckets, thread })
    }

    /// Waits until all processes have come here, and disconnects.
    pub fn close(&self) {
        self.end(Job::Close);
    }

    /// Ends this process and all others.
    pub fn abort(&self) -> ! {
        self.end(Job::Abort);
        // Not reached unless the thread is gone.
        process::exit(1)
    }

    fn end(&self, job: Job) {
        let _ = self.jobs.send(job);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = thread.map(JoinHandle::join);
    }

    fn ask(&self, job: Job) -> Result<()> {
        self.jobs.send(job).map_err(|_| lost("MPI has ended"))
    }
}

/// Does what is asked until the connection is closed.
fn serve(world: &SimpleCommunicator, queue: &Receiver<Job>, added: &Sender<Vec<f32>>) {
    let add = SystemOperation::sum;
    for job in queue {
        // Nobody waits any more where an answer cannot be sent.
        let _ = match job {
            Job::Bucket(bucket) => {
                let mut sums = vec![0.0; bucket.len()];
                world.all_reduce_into(&bucket[..], &mut sums[..], add());
                added.send(sums).ok()
            }
            Job::Numbers(numbers, answer) => {
                let mut sums = vec![0.0; numbers.len()];
                world.all_reduce_into(&numbers[..], &mut sums[..], add());
                answer.send(sums).ok()
            }
            Job::Close => return world.barrier(),
            Job::Abort => break,
        };
    }
    world.abort(1)
}

impl Exchange for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn start(&self, bucket: Vec<f32>) -> Result<()> {
        self.ask(Job::Bucket(bucket))
    }

    fn finish(&self) -> Result<Vec<f32>> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.recv().map_err(|_| lost("MPI has ended"))
    }

    fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        let (answer, sums) = mpsc::channel();
        self.ask(Job::Numbers(numbers.to_vec(), answer))?;
        let sums = sums.recv().map_err(|_| lost("MPI has ended"))?;
        numbers.copy_from_slice(&sums);
        Ok(())
    }
}

fn lost(why: &str) -> TrainError {
    TrainError::Exchange(why.to_owned())
}
