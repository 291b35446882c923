// A client of protocol 1, written from docs/protocol.md alone, and its driver for
// unlocker-conformance. It shows that the page suffices; it is not a library.
'use strict'

const crypto = require('node:crypto')
const http = require('node:http')
const os = require('node:os')
const readline = require('node:readline')

const endpoints = process.env.UNLOCKER_ETCD_ENDPOINTS.split(',')
const timeout = 1000 * parseFloat(process.env.UNLOCKER_ETCD_REQUEST_TIMEOUT)
const prefix = process.env.UNLOCKER_PREFIX
const agent = new http.Agent({ keepAlive: true })
const retryPause = 50
const watchPeriod = 60000 // after which a watch without an event is replaced
let current = 0 // the endpoint that is asked first

const fields = ['uuid', 'hostname', 'locked_at', 'alert_at', 'auto_unlock_at', 'alive_at', 'purpose', 'pid']

class Failure extends Error {
  constructor(kind, message, details = {}) {
    super(message)
    this.answer = { ok: false, error: kind, message, ...details }
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const monotonic = () => performance.now()
const base64 = (text) => Buffer.from(text).toString('base64')
const text = (base) => Buffer.from(base ?? '', 'base64').toString()
const stamp = (ms) => (ms / 1000).toFixed(3)
const key = (name, field) => base64(prefix + name + '/' + field)
const put = (name, field, value) => ({ requestPut: { key: key(name, field), value: base64(value) } })

// post sends a request and gives each line of the response to take, until that returns true.
function post(path, body, end, take) {
  return new Promise((resolve, reject) => {
    const request = http.request(endpoints[current] + path, { method: 'POST', agent }, (response) => {
      const lines = readline.createInterface({ input: response }).on('error', reject)
      lines.on('line', (line) => {
        try {
          if (!take(JSON.parse(line))) return
          resolve()
          if (path === '/v3/watch') request.destroy()
        } catch (error) {
          reject(error)
          request.destroy()
        }
      })
      response.on('close', () => reject(new Error('the response ended')))
    })
    const timer = setTimeout(() => request.destroy(new Error('timeout')), Math.max(0, end - monotonic()))
    request.on('close', () => clearTimeout(timer))
    request.on('error', reject)
    request.end(JSON.stringify(body))
  })
}

// commit repeats a transaction until it is answered. again says that an answer may have been lost;
// late is called for each.
async function commit(txn, end, late = () => {}) {
  for (let again = false; ; again = true) {
    try {
      let answer
      await post('/v3/kv/txn', txn, Math.min(end, monotonic() + timeout / 3), (line) => (answer = line))
      if (!answer.code) return { answer, again }
      throw [4, 14].includes(answer.code) ? new Error(answer.message) : new Failure('refused', answer.message)
    } catch (error) {
      if (error instanceof Failure) throw error
      late()
      if (monotonic() + retryPause >= end) throw new Failure('unavailable', error.message)
    }
    current = (current + 1) % endpoints.length
    await sleep(retryPause)
  }
}

// watch waits until a lock may be free.
async function watch(name, revision, end) {
  const createRequest = { key: key(name, 'uuid'), startRevision: revision, filters: ['NOPUT'] }
  try {
    await post('/v3/watch', { createRequest }, Math.min(end, monotonic() + watchPeriod), ({ result }) =>
      !result || result.canceled || result.events?.some((event) => event.type === 'DELETE'))
  } catch {
    await sleep(Math.max(0, Math.min(retryPause, end - monotonic()))) // the next attempt says whether etcd is there
  }
}

const found = (answer) => answer.responses.flatMap((response) => response.response_range.kvs ?? [])

class Lock {
  constructor(name, patience, purpose = '') {
    if (('/' + name + '/').includes('//')) throw new Failure('invalid', `${JSON.stringify(name)} is not a name`)
    Object.assign(this, { name, purpose, uuid: crypto.randomUUID(), gone: false, late: 0 })
    this.extend(patience)
  }

  // extend notes the deadline of a transaction that is about to be sent.
  extend(patience) {
    const margin = Math.min(1000, patience * 100)
    this.began = Date.now()
    this.deadline = { wall: this.began + patience * 1000 - margin, monotonic: monotonic() + patience * 1000 - margin }
  }

  left() {
    return this.gone ? 0 : Math.max(0, Math.min(this.deadline.wall - Date.now(), this.deadline.monotonic - monotonic()))
  }

  lost() {
    this.gone ||= this.left() === 0
    return this.gone
  }

  // take tries once. It returns the holder and the revision to wait from if another has the lock.
  async take(alertAfter, patience, end) {
    this.extend(patience)
    this.expires = monotonic() + patience * 1000
    const values = {
      uuid: this.uuid, hostname: os.hostname(), pid: String(process.pid), purpose: this.purpose,
      locked_at: stamp(this.began), alert_at: stamp(this.began + alertAfter * 1000), auto_unlock_at: stamp(this.began + patience * 1000),
    }
    const { answer } = await commit({
      compare: [{ target: 'VERSION', result: 'EQUAL', key: key(this.name, 'uuid'), version: '0' }],
      success: Object.entries(values).map(([field, value]) => put(this.name, field, value)),
      failure: fields.map((field) => ({ requestRange: { key: key(this.name, field) } })),
    }, end, () => this.late++) // how many attempts may still be executed
    const revision = answer.header.revision
    this.cluster = answer.header.cluster_id
    if (answer.succeeded) {
      this.token = this.revision = Number(revision)
      return null
    }
    const kvs = found(answer)
    const uuid = kvs.find((kv) => kv.key === key(this.name, 'uuid'))
    if (text(uuid.value) === this.uuid) {
      this.late-- // the one that has taken it
      this.token = this.revision = Number(uuid.create_revision)
      return null
    }
    const written = kvs.filter((kv) => BigInt(kv.mod_revision) >= BigInt(uuid.create_revision))
    return { revision, holder: Object.fromEntries(written.map((kv) => [text(kv.key).split('/').at(-1), text(kv.value)])) }
  }

  mine() {
    return { target: 'VALUE', result: 'EQUAL', key: key(this.name, 'uuid'), value: base64(this.uuid) }
  }

  restored({ header }) {
    return header.cluster_id !== this.cluster || Number(header.revision) < this.token
  }

  // renew says whether the lock is still held.
  async renew(success, end) {
    const [uuid, deadline] = [key(this.name, 'uuid'), key(this.name, 'auto_unlock_at')]
    for (;;) {
      const unchanged = { target: 'MOD', result: 'EQUAL', key: deadline, modRevision: String(this.revision) }
      const failure = [{ requestRange: { key: uuid } }, { requestRange: { key: deadline } }]
      const { answer } = await commit({ compare: [this.mine(), unchanged], success, failure }, end)
      if (this.restored(answer)) return false
      const kvs = answer.succeeded ? [] : found(answer)
      if (!answer.succeeded && text(kvs.find((kv) => kv.key === uuid)?.value) !== this.uuid) return false
      this.revision = answer.succeeded ? answer.header.revision : kvs.find((kv) => kv.key === deadline)?.mod_revision ?? 0
      if (answer.succeeded) return true
    }
  }

  async alive(alertAfter, patience) {
    if (this.lost()) throw new Failure('lost', 'the deadline has passed')
    const renewed = new Lock(this.name, patience)
    for (const clock in this.deadline) this.deadline[clock] = Math.min(this.deadline[clock], renewed.deadline[clock])
    const mine = await this.renew([
      put(this.name, 'alert_at', stamp(renewed.began + alertAfter * 1000)),
      put(this.name, 'auto_unlock_at', stamp(renewed.began + patience * 1000)),
      put(this.name, 'alive_at', stamp(renewed.began)),
    ], monotonic() + Math.min(timeout, this.left()))
    this.gone = !mine
    if (!mine) throw new Failure('lost', 'another has the lock, or nobody')
    this.deadline = renewed.deadline
  }

  remove() {
    const success = fields.map((field) => ({ requestDeleteRange: { key: key(this.name, field) } }))
    return commit({ compare: [this.mine()], success }, monotonic() + timeout)
  }

  // release removes in the background a lock that is lost, and what late attempts take.
  async release(lost) {
    for (let pause = retryPause; lost || (this.late > 0 && monotonic() < this.expires); pause = Math.min(2 * pause, 2000)) {
      const { answer } = await this.remove().catch((failure) => failure) // whose answer has no header
      if (answer.succeeded && !lost) this.late--
      if (answer.header) lost = false
      await sleep(pause)
    }
  }

  async unlock() {
    const lost = this.lost()
    const { answer, again } = lost ? { answer: {} } : await this.remove()
    this.gone = true
    this.release(lost)
    if (lost || this.restored(answer) || (!answer.succeeded && !again)) throw new Failure('lost', 'another has the lock, or nobody')
  }
}

const locks = new Map()

function held(lock) {
  locks.set(lock.uuid, lock)
  return { name: lock.name, uuid: lock.uuid, token: lock.token }
}

function find({ uuid }) {
  if (!locks.has(uuid)) throw new Failure('invalid', 'no such lock')
  return locks.get(uuid)
}

const commands = {
  async lock({ name, alert_after, patience, purpose, wait }) {
    const lock = new Lock(name, patience, purpose)
    const end = monotonic() + wait * 1000
    try {
      for (;;) {
        const other = await lock.take(alert_after, patience, Math.max(end, monotonic() + timeout))
        if (!other) return held(lock)
        if (monotonic() >= end) throw new Failure('held', 'another has the lock', { holder: other.holder })
        await watch(name, other.revision, end)
      }
    } finally {
      if (!lock.token) lock.release(false)
    }
  },
  async try_lock_all({ names, alert_after, patience }) {
    const answer = { locks: [], held: [] }
    for (const name of names) {
      try {
        answer.locks.push(await commands.lock({ name, alert_after, patience, wait: 0 }))
      } catch (failure) {
        if (failure.answer?.error !== 'held') throw failure
        answer.held.push({ name, holder: failure.answer.holder })
      }
    }
    return answer
  },
  alive: (q) => find(q).alive(q.alert_after, q.patience),
  unlock: (q) => find(q).unlock(),
  async lost(q) {
    const lock = find(q)
    for (const end = monotonic() + q.wait * 1000; !lock.lost() && monotonic() < end;) await sleep(20)
    return { lost: lock.lost() }
  },
  async quit() {},
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const q = JSON.parse(line)
    let answer
    try {
      answer = { ok: true, ...(await commands[q.op](q)) }
    } catch (error) {
      answer = error instanceof Failure ? error.answer : { ok: false, error: 'unexpected', message: error.stack }
    }
    process.stdout.write(JSON.stringify({ id: q.id, ...answer }) + '\n')
    if (q.op === 'quit') process.exit()
  }
}

main()
