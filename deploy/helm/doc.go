// Package helm tests that the schema of the chart has all keys of the configuration, with the
// same types. check.sh tests everything else about the chart.
package helm
