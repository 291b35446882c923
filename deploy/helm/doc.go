// Package helm holds the chart to the daemon: its tests fail where a key of the configuration is missing from the chart's
// schema, or has another type there. All else about the chart is in check.sh.
package helm
