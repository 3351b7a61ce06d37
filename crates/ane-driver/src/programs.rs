//! Programs on the engine: a cache with the engine's limits on compilations and loaded programs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ane_model::Chip;
use exec::Result;
use exec::port::{MODEL_FILE, MODEL_PATH, Port, Qos, WeightFile};
use mil::package::blob::WEIGHTS_PATH;
use mil::text::{Dialect, print_with_weights};
use mil::{Literal, Opset, Payload, Program, Type};
use sha2::{Digest, Sha256};

use crate::error::{failed, invalid, limit, unsupported};
use crate::stats::Stats;

/// Called when the process has used up its compilations; it may replace the process and not return.
pub type Exhausted = Arc<dyn Fn() + Send + Sync>;

/// How a program gets other weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// A new program is compiled.
    Recompile,
    /// The loaded program's weight file is overwritten, the program unloaded and loaded again. Only
    /// where [`self_test`](crate::self_test()) says that this has an effect.
    Delta,
}

/// What a program is known by: digests of its text and its weights. Sizes are part of the text; chip
/// and system are the port's, of which a cache has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key([u8; 32], [u8; 32]);

impl Key {
    /// Of `program`, which is printed for it.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub(crate) fn of(program: &Program) -> Result<Self> {
        Ok(Printed::new(program)?.key())
    }
}

/// A compiled program.
pub(crate) struct Entry<P: Port> {
    pub(crate) label: String,
    /// Of the text and weights that it has now.
    key: Mutex<Key>,
    pub(crate) model: P::Model,
    state: Mutex<Residence>,
    port: Arc<P>,
}

/// Whether a program is loaded, and when it was last used.
#[derive(Clone, Copy, Default)]
struct Residence {
    loaded: bool,
    used: u64,
}

impl<P: Port> Drop for Entry<P> {
    fn drop(&mut self) {
        // Nobody is left to tell of an error.
        if lock(&self.state).loaded {
            let _ = self.port.unload(&self.model, Qos::default());
        }
        let _ = fs::remove_dir_all(self.port.directory(&self.model));
    }
}

/// The programs of a port.
pub(crate) struct Programs<P: Port> {
    port: Arc<P>,
    chip: Chip,
    exhausted: Option<Exhausted>,
    entries: Mutex<HashMap<Key, Arc<Entry<P>>>>,
    clock: AtomicUsize,
    stats: Mutex<Stats>,
    /// Held while programs are loaded, unloaded and evaluated: what one thread is about to evaluate,
    /// another must not unload.
    residency: Mutex<()>,
    /// What the self-test found, once it was asked for.
    tested: Mutex<Option<Update>>,
}

/// A panic elsewhere leaves maps and counters as they are, which are valid at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers programs of this process, so that no two, of no two processes, share a directory.
static INSTANCES: AtomicUsize = AtomicUsize::new(0);

impl<P: Port> Programs<P> {
    pub(crate) fn new(port: Arc<P>, chip: Chip, exhausted: Option<Exhausted>) -> Self {
        Programs {
            port,
            chip,
            exhausted,
            entries: Mutex::default(),
            clock: AtomicUsize::new(0),
            stats: Mutex::default(),
            residency: Mutex::default(),
            tested: Mutex::default(),
        }
    }

    pub(crate) fn port(&self) -> &Arc<P> {
        &self.port
    }

    pub(crate) fn stats(&self) -> Stats {
        *lock(&self.stats)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut lock(&self.stats));
    }

    /// The compiled form of `program`, from the cache if it is there.
    ///
    /// # Errors
    /// When files cannot be written, the compiler refuses it, or no compilation is left.
    pub(crate) fn compiled(&self, program: &Program, label: &str) -> Result<Arc<Entry<P>>> {
        let printed = Printed::new(program)?;
        let key = printed.key();
        if let Some(entry) = lock(&self.entries).get(&key) {
            return Ok(entry.clone());
        }
        let entry = Arc::new(self.compile_printed(printed, label)?);
        lock(&self.entries).insert(key, entry.clone());
        Ok(entry)
    }

    /// Compiles without looking into the cache.
    pub(crate) fn compile(&self, program: &Program, label: &str) -> Result<Entry<P>> {
        self.compile_printed(Printed::new(program)?, label)
    }

    fn compile_printed(&self, printed: Printed, label: &str) -> Result<Entry<P>> {
        let key = printed.key();
        let budget = self.chip.runtime.compiles.as_ref().map(|f| f.value as usize);
        let spent = self.port.usage().compilations;
        if budget.is_some_and(|b| spent >= b) {
            if let Some(exhausted) = &self.exhausted {
                exhausted();
            }
            return Err(limit(format!(
                "{label}: this process has compiled {spent} programs, which is all it can; start it again"
            )));
        }
        let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let text = printed.text.replacen(TAG, &format!("{}-{number}", std::process::id()), 1);
        let weights = printed.weights;
        let file = WeightFile { key: WEIGHTS_PATH, data: &weights };
        let files = if weights.is_empty() { &[][..] } else { std::slice::from_ref(&file) };
        let model = self.port.model(text.as_bytes(), files).map_err(|e| failed(label, &e))?;
        let directory = self.port.directory(&model);
        // From here on the entry removes the directory, whatever fails.
        let entry = Entry {
            label: label.to_owned(),
            key: Mutex::new(key),
            model,
            state: Mutex::default(),
            port: self.port.clone(),
        };
        let wrote = write_files(&directory, &text, files);
        wrote.map_err(|e| invalid(format!("{label}: {}: {e}", directory.display())))?;
        let compiled = self.prepared(|port| port.compile(&entry.model, Qos::default()));
        compiled.map_err(|e| failed(label, &e))?;
        self.count(|s| s.compilations += 1);
        Ok(entry)
    }

    /// The result of `work`, whose time on an emulated engine's clock is counted.
    fn prepared<T>(&self, work: impl FnOnce(&P) -> T) -> T {
        let before = self.port.virtual_time().preparing;
        let result = work(&self.port);
        let passed = self.port.virtual_time().preparing.zip(before).map(|(now, then)| now - then);
        self.count(|s| {
            s.preparing = passed.map(|p| s.preparing.unwrap_or_default() + p);
        });
        result
    }

    /// Makes sure that a program is loaded, unloading others that were not used for longest.
    fn load(&self, entry: &Entry<P>) -> Result<()> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed) as u64;
        {
            let mut state = lock(&entry.state);
            state.used = now;
            if state.loaded {
                return Ok(());
            }
        }
        let room = self.chip.runtime.loaded_programs.as_ref().map(|f| f.value as usize);
        while room.is_some_and(|room| self.port.usage().loaded >= room.max(1)) {
            if !self.evict(entry)? {
                break;
            }
        }
        let loaded = self.prepared(|port| port.load(&entry.model, Qos::default()));
        loaded.map_err(|e| failed(&entry.label, &e))?;
        lock(&entry.state).loaded = true;
        self.count(|s| s.loads += 1);
        Ok(())
    }

    /// Unloads the program that was not used for longest; whether there was one.
    fn evict(&self, except: &Entry<P>) -> Result<bool> {
        let oldest = {
            let entries = lock(&self.entries);
            let others = entries.values().filter(|e| !std::ptr::eq(e.as_ref(), except));
            let loaded = others.filter(|e| lock(&e.state).loaded);
            loaded.min_by_key(|e| lock(&e.state).used).cloned()
        };
        let Some(oldest) = oldest else { return Ok(false) };
        self.unload(&oldest)?;
        self.count(|s| s.evictions += 1);
        Ok(true)
    }

    fn unload(&self, entry: &Entry<P>) -> Result<()> {
        let unloaded = self.port.unload(&entry.model, Qos::default());
        unloaded.map_err(|e| failed(&entry.label, &e))?;
        lock(&entry.state).loaded = false;
        Ok(())
    }

    /// Loads a program unless it is, and evaluates a request of it.
    ///
    /// # Errors
    /// When it cannot be loaded, or what the engine says.
    pub(crate) fn evaluate(&self, entry: &Entry<P>, request: &P::Request) -> Result<()> {
        let _alone = lock(&self.residency);
        self.load(entry)?;
        let (start, emulated) = (Instant::now(), self.port.virtual_time().evaluating);
        let evaluated = self.port.evaluate(&entry.model, request, Qos::default());
        evaluated.map_err(|e| failed(&entry.label, &e))?;
        let wall = start.elapsed();
        let now = self.port.virtual_time().evaluating;
        let passed = now.zip(emulated).map(|(now, then)| now - then);
        self.count(|s| {
            s.dispatches += 1;
            s.wall += wall;
            s.predicted = passed.map(|p| s.predicted.unwrap_or_default() + p);
        });
        Ok(())
    }

    /// The update that the self-test, done once, says is right.
    fn tested_update(&self) -> Result<Update> {
        let mut tested = lock(&self.tested);
        if let Some(update) = *tested {
            return Ok(update);
        }
        let update = crate::self_test(&self.port, &self.chip)?.update();
        *tested = Some(update);
        Ok(update)
    }

    /// `entry` with the weights of `program`, which has the same text; the same entry if they are its
    /// own. The self-test decides how if `update` does not say. `holders` is how often the caller, whose
    /// uses of it all change, holds the entry.
    ///
    /// # Errors
    /// When files cannot be written, or the program not compiled or loaded again.
    pub(crate) fn updated(
        &self,
        entry: &Arc<Entry<P>>,
        program: &Program,
        update: Option<Update>,
        holders: usize,
    ) -> Result<Arc<Entry<P>>> {
        let printed = Printed::new(program)?;
        let (old, new) = (*lock(&entry.key), printed.key());
        if old == new {
            return Ok(entry.clone());
        }
        if let Some(known) = lock(&self.entries).get(&new) {
            return Ok(known.clone());
        }
        let update = update.map_or_else(|| self.tested_update(), Ok)?;
        // What others hold keeps its weights; what is the caller's alone must not be found under its
        // old ones, nor fill the engine with a program for each step of training.
        let alone = {
            let mut entries = lock(&self.entries);
            let cached = entries.get(&old).is_some_and(|e| Arc::ptr_eq(e, entry));
            let held = Arc::strong_count(entry) - usize::from(cached);
            if cached && held == holders {
                entries.remove(&old);
            }
            held == 1
        };
        let updated = match update {
            // Of several uses each may want other weights.
            Update::Delta if alone && old.0 == new.0 => {
                self.reload(entry, printed)?;
                entry.clone()
            }
            _ => Arc::new(self.compile_printed(printed, &entry.label)?),
        };
        lock(&self.entries).insert(new, updated.clone());
        Ok(updated)
    }

    /// Overwrites the weight file of a program, unloads it and loads it again. The file is replaced
    /// whole, by renaming.
    fn reload(&self, entry: &Entry<P>, printed: Printed) -> Result<()> {
        let _alone = lock(&self.residency);
        let place = |e: io::Error| invalid(format!("{}: {e}", entry.label));
        let target = self.port.directory(&entry.model).join(relative(WEIGHTS_PATH));
        let fresh = target.with_extension("new");
        fs::write(&fresh, &printed.weights).map_err(place)?;
        fs::rename(&fresh, &target).map_err(place)?;
        if lock(&entry.state).loaded {
            self.unload(entry)?;
        }
        self.load(entry)?;
        *lock(&entry.key) = printed.key();
        self.count(|s| s.reloads += 1);
        Ok(())
    }
}

fn relative(key: &str) -> &str {
    key.strip_prefix(MODEL_PATH).unwrap_or(key)
}

fn write_files(directory: &Path, text: &str, files: &[WeightFile<'_>]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(MODEL_FILE), text)?;
    for file in files {
        let path = directory.join(relative(file.key));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, file.data)?;
    }
    Ok(())
}

/// What stands in a program's text for what makes it unlike all others.
const TAG: &str = "00000000-instance";

/// A program's text, and its weight file, which is empty if it has no weights.
struct Printed {
    text: String,
    weights: Vec<u8>,
}

impl Printed {
    fn new(program: &Program) -> Result<Self> {
        let mut program = program.clone();
        let string = || Type::from(mil::TensorType::new(tensor::DType::Str, [0usize; 0]));
        let text = |s: &str| Payload::Strings(vec![s.to_owned()]);
        let ty = Type::Dict(Box::new(string()), Box::new(string()));
        let payload = Payload::Entries(vec![(text("rigel-instance"), text(TAG))]);
        program.attributes.insert("buildInfo".to_owned(), Literal { ty, payload });
        let modern = program.functions.values().all(|f| f.opset >= Opset::Ios18);
        let dialect = if modern { Dialect::V1_3 } else { Dialect::V1_0 };
        let mut weights = Vec::new();
        let text = print_with_weights(&program, dialect, &mut weights)
            .map_err(|e| unsupported(format!("the program cannot be printed: {e}")))?;
        if !text.contains(WEIGHTS_PATH) {
            weights.clear();
        }
        Ok(Printed { text, weights })
    }

    fn key(&self) -> Key {
        Key(Sha256::digest(&self.text).into(), Sha256::digest(&self.weights).into())
    }
}
