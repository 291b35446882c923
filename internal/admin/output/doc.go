// Package output prints locks for people and programs.
//
// Guaranteed: whatever stands in etcd, it reaches the output only in the way of package
// text, and what is for people is bounded. JSON and YAML stay what they are: what is
// escaped there is escaped in the way of the format, and is read back as it was.
package output
