package etcd

import "github.com/coreos/go-semver/semver"

// StaleReads returns the version to upgrade to if a member of a version may answer a linearizable read with old
// data after its process was stopped for a while (etcd#20418), and "" otherwise.
func StaleReads(version string) (upgrade string) {
	v, err := semver.NewVersion(version)
	if err != nil {
		return ""
	}
	for _, fixed := range []string{"3.6.9", "3.5.28", "3.4.43"} {
		f := semver.New(fixed)
		if v.Major == f.Major && v.Minor == f.Minor && v.LessThan(*f) {
			return fixed
		}
	}
	return ""
}
