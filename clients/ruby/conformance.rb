# frozen_string_literal: true

# Drives the client by the commands of unlocker-conformance; docs/conformance.md describes them. It drives the gem that
# is installed, and where none is, the sources in this folder.

require "json"
begin
  require "unlocker_mutex"
rescue LoadError
  require_relative "lib/unlocker_mutex"
end

# Answers commands.
class Driver
  include UnlockerMutex

  def initialize(env)
    timeout = env.fetch("UNLOCKER_ETCD_REQUEST_TIMEOUT").delete_suffix("s").to_f
    options = { waiters_prefix: env["UNLOCKER_WAITERS_PREFIX"] }.compact
    @client = Client.new(env.fetch("UNLOCKER_ETCD_ENDPOINTS").split(","), prefix: env.fetch("UNLOCKER_PREFIX"), request_timeout: timeout, **options)
    @locks = {}
  end

  def execute(command)
    { ok: true, **run(command) }
  rescue Held => e
    { ok: false, error: "held", message: e.message, holder: e.holder.fields }
  rescue Lost => e
    { ok: false, error: "lost", message: e.message }
  rescue Unreachable => e
    { ok: false, error: "unavailable", message: e.message }
  rescue ArgumentError, KeyError => e
    { ok: false, error: "invalid", message: e.message }
  end

  private

  def run(command)
    terms = { expect: command["alert_after"], patience: command["patience"] }
    case command["op"]
    when "lock" then hold(@client.lock(command["name"], timeout: command["wait"], slots: command["slots"]&.nonzero?, purpose: command["purpose"], **terms))
    when "try_lock_all" then try_lock_all(command["names"], terms)
    when "alive" then command_lock(command).alive(**terms).then { {} }
    when "unlock" then command_lock(command).unlock.then { {} }
    when "lost" then { lost: lost?(command_lock(command), command["wait"]) }
    else {}
    end
  end

  def command_lock(command) = @locks.fetch(command["uuid"])

  def hold(lock)
    @locks[lock.uuid] = lock
    { name: lock.name, uuid: lock.uuid, token: lock.token }
  end

  def try_lock_all(names, terms)
    taken, held = @client.try_lock_all(names, **terms)
    { locks: taken.map { |lock| hold(lock) }, held: held.map { |h| { name: h.holder.name, holder: h.holder.fields } } }
  end

  def lost?(lock, wait)
    end_at = Process.clock_gettime(Process::CLOCK_MONOTONIC) + wait
    sleep 0.02 until lock.lost? || Process.clock_gettime(Process::CLOCK_MONOTONIC) >= end_at
    lock.lost?
  end
end

driver = Driver.new(ENV)
$stdin.each_line do |line|
  command = JSON.parse(line)
  puts JSON.generate({ id: command["id"], **driver.execute(command) })
  $stdout.flush
  break if command["op"] == "quit"
end
