//! A disk below one folder that remembers what is on stable storage, and can lose power, be full, slow or broken.
//!
//! Names change in the order in which they were changed, but until their folder is synced any of the changes may be lost.
//! Only changes by way of [`disk`](crate::io::disk), [`RawFile`](crate::io::raw_file) and
//! [`SharedMap`](crate::io::SharedMap) are seen.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use super::content::{Content, Keep};
use super::dice::Dice;
use super::executor::Simulation;
use crate::io::disk::{Answer, Change};
use crate::io::tap::Tap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// What is not on stable storage may be lost.
    Power,
    /// Of the process: what was written stays, as far as the system call got.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    /// The change may be done, half done, or not.
    During,
}

/// The end of the process, when it makes its n-th change from now on.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    pub at_change: u64,
    pub kind: CrashKind,
    pub moment: Moment,
}

/// What a change that fails is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// EIO, ENOSPC …
    Errno(i32),
    /// Of a write only a part is done; anything else is EIO.
    Short,
    /// It takes this many ms; what does not wait for it is not slowed.
    Slow(u64),
}

/// The n-th change (from 0, since it was asked for) fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at_change: u64,
    pub failure: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Folder,
    File(usize),
}

/// A change of names that is not on stable storage yet.
#[derive(Clone, Debug)]
struct NameChange {
    stamp: u64,
    /// These go, if they still mean this.
    gone: Option<(PathBuf, Node)>,
    /// This one comes.
    new: Option<(PathBuf, Node)>,
}

impl NameChange {
    fn is_in(&self, folder: &Path) -> bool {
        self.gone.iter().chain(&self.new).any(|(path, _)| path.parent() == Some(folder))
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        if let Some((path, node)) = &self.gone
            && names.get(path) == Some(node)
        {
            names.remove(path);
        }
        if let Some((path, node)) = &self.new {
            names.insert(path.clone(), *node);
        }
    }
}

struct InFlight {
    number: u64,
    file: usize,
    at: usize,
    bytes: Vec<u8>,
}

/// What is found after a crash.
struct Image {
    names: BTreeMap<PathBuf, Node>,
    contents: BTreeMap<usize, Vec<u8>>,
    kind: CrashKind,
}

#[derive(Default)]
struct State {
    stamp: u64,
    files: Vec<Content>,
    /// Below the disk's folder.
    names: BTreeMap<PathBuf, Node>,
    durable_names: BTreeMap<PathBuf, Node>,
    name_changes: Vec<NameChange>,
    in_flight: Vec<InFlight>,
    /// There is no process any more; this is what the next one will find.
    image: Option<Image>,
}

/// The disk. All of the store that is on it runs on the thread that made it.
pub struct SimDisk {
    folder: PathBuf,
    sim: Rc<Simulation>,
    dice: Dice,
    state: RefCell<State>,
    /// Changes so far.
    changes: Cell<u64>,
    crash: Cell<Option<Crash>>,
    fault: Cell<Option<Fault>>,
    /// How often a fault struck, and whether it was a write or sync of an executor.
    struck: Cell<u64>,
    struck_executor: Cell<bool>,
    drops_pages: Cell<bool>,
    /// Writes and syncs take up to so many ms, and one in a hundred so many.
    delay_ms: Cell<(u64, u64)>,
}

type Op<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + 'a>>;

impl SimDisk {
    /// An empty disk in a folder that is there.
    pub fn new(folder: &Path, sim: Rc<Simulation>, dice: Dice) -> Rc<SimDisk> {
        Rc::new(SimDisk {
            folder: folder.to_owned(),
            sim,
            dice,
            state: RefCell::default(),
            changes: Cell::new(0),
            crash: Cell::default(),
            fault: Cell::default(),
            struck: Cell::default(),
            struck_executor: Cell::default(),
            drops_pages: Cell::default(),
            delay_ms: Cell::new((0, 0)),
        })
    }

    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub fn crash_at(&self, crash: Option<Crash>) {
        self.crash.set(crash.map(|crash| Crash { at_change: crash.at_change + self.changes.get(), ..crash }));
    }

    pub fn fail_at(&self, fault: Option<Fault>) {
        self.fault.set(fault.map(|fault| Fault { at_change: fault.at_change + self.changes.get(), ..fault }));
        self.struck.set(0);
        self.struck_executor.set(false);
    }

    /// Did the fault happen?
    pub fn has_failed(&self) -> bool {
        self.struck.get() > 0
    }

    /// Was it an executor's write or sync that failed?
    pub fn has_failed_executor(&self) -> bool {
        self.struck_executor.get()
    }

    /// After a sync that failed the pages count as clean, as on Linux.
    pub fn set_drops_pages(&self, drops: bool) {
        self.drops_pages.set(drops);
    }

    /// Executors' writes and syncs take up to `usual` ms, some up to `rare`.
    pub fn set_delay(&self, usual: u64, rare: u64) {
        self.delay_ms.set((usual, rare));
    }

    /// Has the process ended by a crash?
    pub fn is_off(&self) -> bool {
        self.state.borrow().image.is_some()
    }

    /// The process ends now.
    pub fn crash_now(&self, kind: CrashKind) {
        let state = &mut *self.state.borrow_mut();
        if state.image.is_some() {
            return;
        }
        self.crash.set(None);
        self.sim.note(kind as u64);
        for file in 0..state.files.len() {
            self.observe(state, file);
        }
        state.stamp += 1;
        for InFlight { file, at, bytes, .. } in std::mem::take(&mut state.in_flight) {
            let done =
                if kind == CrashKind::Power { bytes.len() } else { self.dice.below(bytes.len() as u64 + 1) as usize };
            state.files[file].write(state.stamp, at, &bytes[..done]);
        }
        state.image = Some(match kind {
            CrashKind::Kill => Image {
                names: state.names.clone(),
                contents: state.files.iter().map(|file| file.shown().to_vec()).enumerate().collect(),
                kind,
            },
            CrashKind::Power => self.after_power_cut(state),
        });
    }

    fn after_power_cut(&self, state: &State) -> Image {
        let dice = &self.dice;
        let keep = match dice.below(10) {
            0 | 1 => Keep::Percent(0),
            2 => Keep::Percent(100),
            3 => Keep::Percent(10),
            4 | 5 => Keep::Percent(50),
            6 | 7 => Keep::Percent(90),
            _ => Keep::Before(state.stamp.saturating_sub(dice.below(dice.between(1, 60)))),
        };
        let mut names = state.durable_names.clone();
        for change in &state.name_changes {
            if keep.keeps(dice, change.stamp) {
                change.apply(&mut names);
            }
        }
        // What lies in a folder that is lost is lost with it.
        let all: BTreeSet<_> = names.keys().cloned().collect();
        names.retain(|path, _| path.ancestors().skip(1).all(|above| above == Path::new("") || all.contains(above)));
        let files = names.values().filter_map(|node| if let Node::File(file) = node { Some(*file) } else { None });
        let contents =
            files.map(|file| (file, state.files[file].after_power_cut(dice, keep))).collect::<BTreeMap<_, _>>();
        Image { names, contents, kind: CrashKind::Power }
    }

    /// The process is over (nothing of it may be left in memory). Makes the folder what the next one finds.
    pub fn start_again(&self) {
        let state = &mut *self.state.borrow_mut();
        // System calls of a process that ended by itself are finished.
        for InFlight { file, at, bytes, .. } in std::mem::take(&mut state.in_flight) {
            state.stamp += 1;
            state.files[file].write(state.stamp, at, &bytes);
            if let Some(path) = path_of(&state.names, file) {
                let opened = File::options().write(true).open(self.folder.join(path)).expect("the file is there");
                opened.write_all_at(&bytes, at as u64).expect("it takes the write");
            }
        }
        let Some(image) = state.image.take() else { return };
        clear(&self.folder);
        let mut first_names: BTreeMap<usize, &Path> = BTreeMap::new();
        for (path, node) in &image.names {
            let whole = self.folder.join(path);
            match node {
                Node::Folder => fs::create_dir(&whole).expect("a folder above comes before it"),
                Node::File(file) => match first_names.get(file) {
                    Some(first) => fs::hard_link(self.folder.join(first), &whole).expect("a second name"),
                    None => {
                        first_names.insert(*file, path);
                        write_sparse(&whole, &image.contents[file]);
                    }
                },
            }
        }
        if image.kind == CrashKind::Power {
            let mut numbers = BTreeMap::new();
            let mut files = Vec::new();
            for (file, bytes) in image.contents {
                numbers.insert(file, files.len());
                files.push(Content::durable(bytes));
            }
            let names: BTreeMap<_, _> = image
                .names
                .into_iter()
                .map(|(path, node)| match node {
                    Node::Folder => (path, Node::Folder),
                    Node::File(file) => (path, Node::File(numbers[&file])),
                })
                .collect();
            state.files = files;
            state.durable_names = names.clone();
            state.names = names;
            state.name_changes.clear();
        }
        for file in &mut state.files {
            file.is_mapped = false;
        }
    }

    /// Below the disk's folder; nothing for what lies elsewhere.
    fn relative(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.folder).ok().map(Path::to_owned)
    }

    /// Looks at what was stored into a mapped file.
    fn observe(&self, state: &mut State, file: usize) {
        if state.files[file].is_mapped
            && let Some(path) = path_of(&state.names, file)
            && let Ok(bytes) = fs::read(self.folder.join(path))
        {
            state.stamp += 1;
            state.files[file].observe(state.stamp, &bytes);
        }
    }

    /// One more change is asked for: is there power, and does it fail?
    fn begin(&self, what: u64, path: &Path, is_executor: bool) -> io::Result<Begun> {
        if self.is_off() {
            return Err(no_power());
        }
        let number = self.changes.get();
        self.changes.set(number + 1);
        self.sim.note(what);
        path.as_os_str().as_encoded_bytes().iter().for_each(|byte| self.sim.note(u64::from(*byte)));
        if let Some(fault) = self.fault.get().filter(|fault| fault.at_change == number) {
            self.struck.set(self.struck.get() + 1);
            self.struck_executor.set(is_executor && !matches!(fault.failure, Failure::Slow(_)));
            return match fault.failure {
                Failure::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
                Failure::Short => Ok(Begun::Short),
                Failure::Slow(ms) => Ok(Begun::Slow(ms)),
            };
        }
        match self.crash.get().filter(|crash| crash.at_change == number) {
            Some(crash) if crash.moment == Moment::Before => {
                self.crash_now(crash.kind);
                Err(no_power())
            }
            Some(crash) => Ok(Begun::Crash(crash.kind)),
            None => Ok(Begun::Do),
        }
    }

    /// Notes what a change will do to the disk.
    fn apply(&self, change: &Change<'_>) {
        let state = &mut *self.state.borrow_mut();
        state.stamp += 1;
        let stamp = state.stamp;
        let at = |path: &Path| self.relative(path);
        let file_at = |names: &BTreeMap<PathBuf, Node>, path: &Path| match at(path).and_then(|path| names.get(&path)) {
            Some(Node::File(file)) => Some(*file),
            _ => None,
        };
        let mut renamed = None;
        match *change {
            Change::MakeFolder { path } => renamed = at(path).map(|path| (None, Some((path, Node::Folder)))),
            Change::Create { path } => {
                if let Some(path) = at(path) {
                    state.files.push(Content::default());
                    renamed = Some((None, Some((path, Node::File(state.files.len() - 1)))));
                }
            }
            Change::Link { from, to } => {
                if let (Some(file), Some(to)) = (file_at(&state.names, from), at(to)) {
                    renamed = Some((None, Some((to, Node::File(file)))));
                }
            }
            Change::Rename { from, to } => {
                let node = at(from).and_then(|from| Some((from.clone(), *state.names.get(&from)?)));
                if let (Some((from, node)), Some(to)) = (node, at(to)) {
                    assert!(matches!(node, Node::File(_)), "folders are not renamed here");
                    renamed = Some((Some((from, node)), Some((to, node))));
                }
            }
            Change::Remove { path } => {
                if let Some(path) = at(path)
                    && let Some(node) = state.names.get(&path).copied()
                {
                    if let Node::File(file) = node {
                        self.observe(state, file);
                    }
                    renamed = Some((Some((path, node)), None));
                }
            }
            Change::Resize { path, len } => {
                if let Some(file) = file_at(&state.names, path) {
                    self.observe(state, file);
                    state.files[file].resize(stamp, len as usize);
                }
            }
            Change::Reserve { path, to } => {
                if let Some(file) = file_at(&state.names, path) {
                    let len = state.files[file].shown().len().max(to as usize);
                    state.files[file].resize(stamp, len);
                }
            }
            Change::Write { path, at, bytes, .. } => {
                if let Some(file) = file_at(&state.names, path) {
                    self.observe(state, file);
                    let stamp = state.stamp;
                    state.files[file].write(stamp, at as usize, bytes);
                }
            }
            Change::Store { path } => {
                if let Some(file) = file_at(&state.names, path) {
                    state.files[file].is_mapped = true;
                    self.observe(state, file);
                }
            }
            Change::Sync { path } => {
                if let Some(file) = file_at(&state.names, path) {
                    self.observe(state, file);
                    let stamp = state.stamp;
                    state.files[file].synced(stamp);
                }
            }
            Change::SyncFolder { path } => {
                if let Some(folder) = at(path) {
                    let State { name_changes, durable_names, .. } = state;
                    name_changes.retain(|change| {
                        let done = change.is_in(&folder);
                        if done {
                            change.apply(durable_names);
                        }
                        !done
                    });
                }
            }
        }
        if let Some((gone, new)) = renamed {
            let change = NameChange { stamp, gone, new };
            change.apply(&mut state.names);
            state.name_changes.push(change);
        }
    }

    /// A sync that failed has brought a part to stable storage. If pages are dropped, no later sync writes the rest.
    fn sync_failed(&self, path: &Path) {
        if !self.drops_pages.get() {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        if let Some(Node::File(file)) = self.relative(path).and_then(|path| state.names.get(&path).copied()) {
            self.observe(state, file);
            state.files[file].sync_failed(&self.dice, Keep::Percent(50));
        }
    }

    async fn delay(&self, extra_ms: u64) {
        let (usual, rare) = self.delay_ms.get();
        let ms = if self.dice.chance(1) { self.dice.below(rare + 1) } else { self.dice.below(usual + 1) };
        Rc::clone(&self.sim).sleep(ms + extra_ms).await;
    }

    async fn executor_write(
        &self,
        file: &File,
        path: &Path,
        at: u64,
        bytes: Vec<u8>,
        durable: bool,
    ) -> io::Result<usize> {
        let relative = self.relative(path).expect("a file of this disk");
        let begun = self.begin(1, &relative, true)?;
        let (number, id, stamp) = {
            let state = &mut *self.state.borrow_mut();
            let Some(Node::File(id)) = state.names.get(&relative).copied() else {
                return Err(io::ErrorKind::NotFound.into());
            };
            self.observe(state, id);
            state.stamp += 1;
            let number = state.stamp;
            state.in_flight.push(InFlight { number, file: id, at: at as usize, bytes: bytes.clone() });
            (number, id, state.stamp)
        };
        self.sim.note(at ^ bytes.len() as u64);
        let mut len = bytes.len();
        let mut slow_ms = 0;
        match begun {
            Begun::Do => {}
            Begun::Short => len = self.dice.below(len as u64) as usize,
            Begun::Slow(ms) => slow_ms = ms,
            Begun::Crash(kind) => {
                self.crash_now(kind);
                return Err(no_power());
            }
        }
        // Readers of the page cache may see a part of it before it is done.
        if self.dice.chance(30) {
            let part = self.dice.below(len as u64 + 1) as usize;
            file.write_all_at(&bytes[..part], at)?;
            self.state.borrow_mut().files[id].write(stamp, at as usize, &bytes[..part]);
        }
        self.delay(slow_ms).await;
        if self.is_off() {
            return Err(no_power());
        }
        file.write_all_at(&bytes[..len], at)?;
        let state = &mut *self.state.borrow_mut();
        state.in_flight.retain(|write| write.number != number);
        state.stamp += 1;
        let stamp = state.stamp;
        state.files[id].write(stamp, at as usize, &bytes[..len]);
        if durable {
            state.files[id].synced_range(stamp, at as usize, len);
        }
        Ok(len)
    }

    async fn executor_sync(&self, path: &Path) -> io::Result<()> {
        let relative = self.relative(path).expect("a file of this disk");
        let begun = self.begin(2, &relative, true).inspect_err(|_| {
            if !self.is_off() {
                self.sync_failed(path);
            }
        })?;
        let (id, stamp) = {
            let state = &mut *self.state.borrow_mut();
            let Some(Node::File(id)) = state.names.get(&relative).copied() else {
                return Err(io::ErrorKind::NotFound.into());
            };
            self.observe(state, id);
            (id, state.stamp)
        };
        let mut slow_ms = 0;
        match begun {
            Begun::Do => {}
            Begun::Short => {
                self.sync_failed(path);
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            Begun::Slow(ms) => slow_ms = ms,
            Begun::Crash(kind) => {
                self.crash_now(kind);
                return Err(no_power());
            }
        }
        self.delay(slow_ms).await;
        if self.is_off() {
            return Err(no_power());
        }
        self.state.borrow_mut().files[id].synced(stamp);
        Ok(())
    }
}

/// How a change that has power goes on.
enum Begun {
    Do,
    Short,
    Slow(u64),
    Crash(CrashKind),
}

impl Tap for SimDisk {
    fn ask(&self, change: &Change<'_>) -> io::Result<Answer> {
        let (kind, path) = match *change {
            Change::MakeFolder { path } => (3, path),
            Change::Create { path } => (4, path),
            Change::Resize { path, .. } => (5, path),
            Change::Reserve { path, .. } => (6, path),
            Change::Write { path, .. } => (7, path),
            Change::Store { path } => (8, path),
            Change::Sync { path } => (9, path),
            Change::SyncFolder { path } => (10, path),
            Change::Rename { from, .. } => (11, from),
            Change::Link { from, .. } => (12, from),
            Change::Remove { path } => (13, path),
        };
        let begun = match self.begin(kind, self.relative(path).as_deref().unwrap_or(Path::new("")), false) {
            Err(error) => {
                if !self.is_off()
                    && let Change::Sync { path } = *change
                {
                    self.sync_failed(path);
                }
                return Err(error);
            }
            Ok(begun) => begun,
        };
        let answer = match change {
            Change::Sync { .. } | Change::SyncFolder { .. } => Answer::Skip,
            _ => Answer::Do,
        };
        match (begun, *change) {
            (Begun::Short, Change::Write { path, at, bytes, durable }) => {
                let len = self.dice.below(bytes.len() as u64) as usize;
                self.apply(&Change::Write { path, at, bytes: &bytes[..len], durable });
                Ok(Answer::Short(len))
            }
            (Begun::Short, _) => Err(io::Error::from_raw_os_error(libc::EIO)),
            (Begun::Crash(CrashKind::Kill), Change::Write { path, at, bytes, durable }) => {
                let len = self.dice.below(bytes.len() as u64 + 1) as usize;
                self.apply(&Change::Write { path, at, bytes: &bytes[..len], durable });
                self.crash_now(CrashKind::Kill);
                Err(no_power())
            }
            (Begun::Crash(kind), _) => {
                // Of what is not synced anything may be lost, this change too; a sync is done or not.
                let is_sync = matches!(change, Change::Sync { .. } | Change::SyncFolder { .. });
                if (kind == CrashKind::Power || self.dice.chance(50)) && (!is_sync || self.dice.chance(50)) {
                    self.apply(change);
                }
                self.crash_now(kind);
                Err(no_power())
            }
            (Begun::Do | Begun::Slow(_), _) => {
                self.apply(change);
                Ok(answer)
            }
        }
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn write_at<'a>(&'a self, file: &'a File, path: &'a Path, at: u64, bytes: Vec<u8>, durable: bool) -> Op<'a, usize> {
        Box::pin(self.executor_write(file, path, at, bytes, durable))
    }

    fn sync<'a>(&'a self, path: &'a Path) -> Op<'a, ()> {
        Box::pin(self.executor_sync(path))
    }

    fn steady_ms(&self) -> u64 {
        self.sim.now_ms()
    }

    fn sleep(&self, ms: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(Rc::clone(&self.sim).sleep(ms))
    }

    fn give_way(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(Rc::clone(&self.sim).give_way())
    }
}

fn no_power() -> io::Error {
    io::Error::other("the simulated process is over")
}

fn path_of(names: &BTreeMap<PathBuf, Node>, file: usize) -> Option<&Path> {
    names.iter().find(|(_, node)| **node == Node::File(file)).map(|(path, _)| path.as_path())
}

fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).expect("the disk's folder is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.expect("it can be emptied");
    }
}

/// Writes what is not zero, so that the rest is a hole, as after a power cut.
fn write_sparse(path: &Path, bytes: &[u8]) {
    const PAGE: usize = 4096;
    let file = File::create(path).expect("a new file");
    file.set_len(bytes.len() as u64).expect("it takes its length");
    for (page, part) in bytes.chunks(PAGE).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, (page * PAGE) as u64).expect("it takes its bytes");
        }
    }
}
