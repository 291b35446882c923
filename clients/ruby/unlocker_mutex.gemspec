# frozen_string_literal: true

require_relative "lib/unlocker_mutex"

Gem::Specification.new do |spec|
  spec.name = "unlocker_mutex"
  spec.version = UnlockerMutex::VERSION
  spec.summary = "Locks in etcd that are removed when their holder dies"
  spec.description = "A client of unlocker, of the standard library only: lock, try_lock, try_lock_all, slots, waiting in order, renewals, fencing tokens."
  spec.authors = ["The unlocker authors"]
  spec.homepage = "https://github.com/etcd-unlocker/unlocker"
  spec.license = "Apache-2.0"
  spec.metadata = { "source_code_uri" => spec.homepage, "changelog_uri" => "#{spec.homepage}/blob/main/CHANGELOG.md", "rubygems_mfa_required" => "true" }
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "sig/**/*.rbs", "README.md", "LICENSE", base: __dir__].sort
end
