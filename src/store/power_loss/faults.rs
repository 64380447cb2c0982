//! Every change of a file fails once, in a life that makes them all: start, appends, rolls, a saved config file, the
//! checkpoint, a stop, a crash and a recovery.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::io::sim::{Failure, Fault};

/// The same life each time, in which the `n`-th change meets `failure`. Says whether there were so many.
fn live_with(n: u64, failure: Failure, append: AppendMode) -> Result<bool, String> {
    let mut run = Run::new(7);
    run.settings.segment_len = 4096;
    run.settings.consumequeue_len = 200;
    (run.settings.index_slots, run.settings.index_entries) = (20, 30);
    run.settings.append = append;
    run.settings.flush = FlushMode::Sync;
    run.settings.zero_ahead = ZeroAhead::Off;
    run.settings.consumequeue_flush_interval_ms = 100;
    run.settings.consumequeue_thorough_interval_ms = 300;
    run.shards = 1;
    run.queues = vec![QueueKey::new("T", 0), QueueKey::new("T", 1)];
    run.world.disk.set_delay(2, 2);
    run.world.disk.fail_at(Some(Fault { at_change: n, failure }));
    // The first process is stopped, the second is killed; both may meet the fault.
    for ends_cleanly in [true, false] {
        one_process(&mut run, ends_cleanly)?;
    }
    let struck = run.world.disk.has_failed();
    run.world.disk.fail_at(None);
    // Without it everything that was promised is there.
    run.process(End::Clean { power: false }, 3).map_err(|found| format!("without the fault: {found}"))?;
    run.check_end_state().map_err(|found| format!("end state: {found}"))?;
    Ok(struck)
}

fn one_process(run: &mut Run, ends_cleanly: bool) -> Check {
    let World { sim, disk, .. } = run.world.clone();
    let had_failed = disk.has_failed_executor();
    let opened = match open(run.settings.clone(), MEMORY_LEN, &Opening::unstopped()) {
        Ok(opened) => opened,
        Err(_) if disk.has_failed() => {
            disk.crash_now(CrashKind::Kill);
            run.crashed(End::OnceOpened(CrashKind::Kill), None);
            return Ok(());
        }
        Err(error) => return Err(format!("the store cannot be opened: {error}")),
    };
    checks::opened(&mut run.world.ledger.borrow_mut(), &opened)?;
    let mut node = Node::start(&run.world, opened, run.shards);
    let shared = Arc::clone(&node.shared);
    let dice = &run.world.dice;
    node.spawn_producer(dice.fork(), 0, run.queues.clone(), 20, 600);
    node.spawn_producer(dice.fork(), 0, run.queues.clone(), 20, 600);
    node.spawn_reader(dice.fork(), 0, run.queues.clone());
    node.spawn_config_saver(dice.fork());
    let poisoned_at = Cell::new(None);
    let deadline = sim.now_ms() + 60_000;
    node.run_until(|| {
        if shared.is_poisoned() && poisoned_at.get().is_none() {
            poisoned_at.set(Some(sim.now_ms()));
        }
        node.all_done(&node.clients) || sim.now_ms() >= deadline
    })?;
    // Executors write and sync the log alone: that is what poisons, and nothing else does.
    let is_poisoned = shared.is_poisoned();
    let has_failed = disk.has_failed_executor() && !had_failed;
    ensure!(is_poisoned == has_failed, "poisoned: {is_poisoned}, a write or sync of the log failed: {has_failed}");
    if let Some(at) = poisoned_at.get() {
        // Who waited was told at once, and so is who comes.
        ensure!(node.all_done(&node.clients), "producers wait for a log that takes nothing");
        let since_ms = sim.now_ms() - at;
        ensure!(since_ms < 20 * 3001, "producers ended {since_ms} ms after the failure");
    }
    let reads_before = run.world.ledger.borrow().read;
    let until = sim.now_ms() + 3000;
    node.run_until(|| sim.now_ms() >= until)?;
    if run.world.ledger.borrow().acknowledged > 0 {
        ensure!(run.world.ledger.borrow().read > reads_before, "nothing is read any more");
    }
    if ends_cleanly && !shared.is_poisoned() {
        node.stop()?;
        run.world.ledger.borrow_mut().crashed(CrashKind::Kill, shared.flushed());
        sim.drop_all();
        disk.start_again();
    } else {
        disk.crash_now(CrashKind::Kill);
        drop(node);
        run.crashed(End::OnceOpened(CrashKind::Kill), Some(shared.flushed()));
    }
    Ok(())
}

/// Lets each change fail in its turn, every `step`-th.
fn sweep(failure: Failure, append: AppendMode, step: usize) {
    let mut failures = Vec::new();
    let mut count = 0;
    for n in (0..).step_by(step) {
        let outcome = catch_unwind(AssertUnwindSafe(|| live_with(n, failure, append)));
        let outcome = outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        match outcome {
            Ok(true) => count += 1,
            Ok(false) => break,
            Err(found) => failures.push(format!("change {n}, {failure:?}, {append:?}: {found}")),
        }
    }
    assert!(failures.is_empty(), "{} of {count}: {failures:#?}", failures.len());
    assert!(count > 20, "the life has only {count} changes");
}

/// A prime, so that all kinds of changes are met over the sweeps.
const STEP: usize = 13;

#[test]
fn an_io_error_at_any_change_loses_nothing_acknowledged() {
    sweep(Failure::Errno(libc::EIO), AppendMode::Buffered, STEP);
    sweep(Failure::Errno(libc::EIO), AppendMode::Mmap, STEP);
}

#[test]
fn a_full_disk_at_any_change_loses_nothing_acknowledged() {
    sweep(Failure::Errno(libc::ENOSPC), AppendMode::Buffered, STEP);
    sweep(Failure::Errno(libc::ENOSPC), AppendMode::Mmap, STEP);
}

#[test]
fn a_short_write_at_any_change_loses_nothing_acknowledged() {
    sweep(Failure::Short, AppendMode::Buffered, STEP);
}

#[test]
fn a_slow_device_at_any_change_loses_nothing_acknowledged() {
    sweep(Failure::Slow(10_000), AppendMode::Buffered, STEP);
    sweep(Failure::Slow(10_000), AppendMode::Mmap, STEP);
}

#[test]
#[ignore = "every single change, in each way, minutes"]
fn every_change_fails_once() {
    for append in APPEND_MODES {
        for failure in [Failure::Errno(libc::EIO), Failure::Errno(libc::ENOSPC), Failure::Short] {
            sweep(failure, append, 1);
        }
    }
}

#[test]
fn a_slow_sync_is_told_before_clients_give_up() {
    let mut run = Run::new(11);
    run.settings.append = AppendMode::Mmap;
    run.settings.flush = FlushMode::Sync;
    run.settings.zero_ahead = ZeroAhead::Off;
    run.shards = 1;
    let World { sim, disk, .. } = run.world.clone();
    let opened = open(run.settings.clone(), MEMORY_LEN, &Opening::unstopped()).unwrap();
    let node = Node::start(&run.world, opened, 1);
    disk.set_delay(20_000, 20_000);
    let key = QueueKey::new("T", 0);
    let answers: Rc<RefCell<Vec<(u64, super::super::PutStatus)>>> = Rc::default();
    for _ in 0..20 {
        node.put_one(&key, &answers);
        let until = sim.now_ms() + 200;
        node.run_until(|| sim.now_ms() >= until).unwrap();
    }
    let until = sim.now_ms() + 5000;
    node.run_until(|| sim.now_ms() >= until).unwrap();
    let answers = answers.borrow();
    assert_eq!(answers.len(), 20, "everybody is answered");
    assert!(answers.iter().all(|(ms, _)| *ms < 3000), "{answers:?}");
    assert!(answers.iter().any(|(_, status)| *status == super::super::PutStatus::FlushDiskTimeout), "{answers:?}");
}
