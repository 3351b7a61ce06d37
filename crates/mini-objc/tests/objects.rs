//! objc2 over the runtime: values arrive, references are counted, pools are emptied, classes can be defined.

#![cfg(not(target_vendor = "apple"))]
#![allow(unsafe_code, reason = "messages are sent by hand")]

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyClass, NSObject};
use objc2::{AnyThread, ClassType, DefinedClass, define_class, msg_send, sel};
use objc2_foundation::{NSArray, NSData, NSDictionary, NSError, NSNumber, NSString};

use rigel_mini_objc as mini_objc;

/// Objects are counted for the whole process, so one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone(test: impl FnOnce()) {
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = (mini_objc::live_objects(), mini_objc::unpooled());
    autoreleasepool(|_| test());
    assert_eq!((mini_objc::live_objects(), mini_objc::unpooled()), before, "(alive, unpooled)");
}

#[test]
fn values_arrive() {
    alone(|| {
        let name = NSString::from_str("ä name");
        assert_eq!(name.to_string(), "ä name");
        let data = NSData::with_bytes(&[1, 2, 3]);
        assert_eq!(data.to_vec(), [1, 2, 3]);
        let numbers =
            NSArray::from_retained_slice(&[NSNumber::new_usize(7), NSNumber::new_usize(9)]);
        assert_eq!(numbers.objectAtIndex(1).as_usize(), 9);
        let pairs = NSDictionary::from_slices(&[&*name], &[&*data]);
        let found = pairs.objectForKey(&NSString::from_str("ä name"));
        assert_eq!(found.map(|found| found.to_vec()), Some(vec![1, 2, 3]));
        assert!(pairs.objectForKey(&NSString::from_str("other")).is_none());
        let error = NSError::new(29, &NSString::from_str("com.example"));
        assert_eq!((error.code(), error.domain().to_string()), (29, "com.example".to_owned()));
        assert!(error.localizedDescription().to_string().contains("com.example error 29"));
    });
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "Counter"]
    #[ivars = (Cell<u32>, Retained<NSString>)]
    struct Counter;

    impl Counter {
        #[unsafe(method(add:))]
        fn add(&self, step: u32) -> u32 {
            let count = &self.ivars().0;
            count.set(count.get() + step);
            count.get()
        }
    }
);

#[test]
fn a_defined_class_runs_and_frees_what_it_holds() {
    alone(|| {
        let this = Counter::alloc().set_ivars((Cell::new(40), NSString::from_str("held")));
        // SAFETY: `-init` of NSObject takes nothing.
        let counter: Retained<Counter> = unsafe { msg_send![super(this), init] };
        // SAFETY: the method above.
        let sum: u32 = unsafe { msg_send![&*counter, add: 2_u32] };
        assert_eq!(sum, 42);
    });
}

#[test]
fn a_pool_frees_and_its_absence_is_seen() {
    alone(|| {
        let before = mini_objc::live_objects();
        autoreleasepool(|_| {
            let _number = NSNumber::new_usize(1);
        });
        assert_eq!(mini_objc::live_objects(), before);
    });
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = mini_objc::unpooled();
    drop(NSNumber::new_usize(1));
    assert_eq!(mini_objc::unpooled(), before + 1);
}

#[test]
fn a_system_can_be_changed_and_is_put_back() {
    alone(|| {
        let verify =
            || NSData::class().verify_sel::<(), usize>(sel!(length)).map_err(|e| e.to_string());
        assert_eq!(verify(), Ok(()));
        {
            let _gone = mini_objc::change_method(c"NSData", c"-length", None);
            assert_eq!(verify(), Err("method not found".to_owned()));
        }
        {
            let _other = mini_objc::change_method(c"NSData", c"-length", Some(c"I@:"));
            assert_eq!(
                verify(),
                Err("expected return to have type code 'I', but found 'Q'".to_owned())
            );
        }
        assert_eq!(verify(), Ok(()));
        let hidden = mini_objc::hide_class(c"NSData");
        assert!(AnyClass::get(c"NSData").is_none());
        drop(hidden);
        assert!(AnyClass::get(c"NSData").is_some());
    });
}
