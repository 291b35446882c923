// Package output prints locks for people and programs.
//
// Guaranteed: all text from etcd is printed through package terminal, and output for
// people is bounded. JSON and YAML stay valid: escapes follow the format, so that readers
// get the original text. Not guaranteed: the layout of tables and of YAML.
package output
