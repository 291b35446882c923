// Package follow keeps a small prefix of etcd in view: it lists the keys at one revision, watches
// them from there, and lists them again whenever the watch fails or was resumed.
//
// Guaranteed: what differs from the keys that were shown before is passed to one callback, one
// call at a time: what the watch shows in the order in which it was written; of a listing, first
// the keys that were written, then those that are gone. Status.InView is true only while all of
// a listing was passed on and the watch has not failed since, by itself or by silence. Number
// and size of what is kept and passed on are limited, since anybody may have written it. Run
// continues until its context is done.
//
// Not guaranteed: that every write is shown. Of those made while the prefix was not in view, only
// the last of each key is.
package follow
